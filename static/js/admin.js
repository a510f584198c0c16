// What Django's admin leaves out for people without a mouse or without eyes: lists that scroll sideways on a narrow
// screen are reached by keyboard, and pictures that explain a box say that they are pictures.
"use strict";

(() => {
  function reachable(group) {
    const scrolls = group.scrollWidth > group.clientWidth;
    const heading = group.querySelector("h2[id]");
    if (!scrolls) {
      for (const name of ["tabindex", "role", "aria-labelledby"]) group.removeAttribute(name);
      return;
    }
    group.tabIndex = 0;
    group.setAttribute("role", "region");
    if (heading) group.setAttribute("aria-labelledby", heading.id);
  }

  // Django's own scripts build the boxes when the page has loaded; they were there first.
  window.addEventListener("load", () => {
    const watch = new ResizeObserver((entries) => entries.forEach((entry) => reachable(entry.target)));
    document.querySelectorAll(".inline-group").forEach((group) => watch.observe(group));
    document.querySelectorAll(".search-label-icon").forEach((icon) => icon.setAttribute("role", "img"));
  });
})();
