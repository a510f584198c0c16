// What every page does beyond its HTML. Progressive enhancement only: without this file each page still works and
// shows the same facts. One delegated listener per concern, so that swapped-in HTML needs no set-up.
"use strict";

(() => {
  const root = document.documentElement;
  const format = JSON.parse(root.dataset.format || "null") || {
    decimal: ".", group: ",", hours: "{h} h {m} min {s} s", minutes: "{m} min {s} s", seconds: "{s} s",
  };

  // ------------------------------------------------------------------ clock, durations, running cost

  // The server's clock: a laptop whose clock is wrong must not show a wrong bill.
  const served = Number(root.dataset.now) || Date.now() / 1000;
  const opened = performance.now();
  const now = () => served + (performance.now() - opened) / 1000;

  const fill = (pattern, parts) => pattern.replace(/\{(\w)\}/g, (_, name) => parts[name]);
  const pad = (number) => String(number).padStart(2, "0");

  /** Seconds in words, as portal/formatting.py writes them. */
  function duration(seconds) {
    const total = Math.max(0, Math.floor(seconds));
    const h = Math.floor(total / 3600), m = Math.floor(total / 60) % 60, s = total % 60;
    if (h) return fill(format.hours, { h: grouped(String(h)), m: pad(m), s: pad(s) });
    return m ? fill(format.minutes, { m, s: pad(s) }) : fill(format.seconds, { s });
  }

  const grouped = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, format.group);

  /** Ticks as an amount with so many decimals, rounded half up. Integers throughout: floats would drift from the receipt. */
  function amount(ticks, digits) {
    const scale = 10n ** BigInt(digits), whole = 3_600_000_000n;
    const scaled = (ticks * scale * 2n + whole) / (whole * 2n);
    const fraction = digits ? format.decimal + String(scaled % scale).padStart(digits, "0") : "";
    return grouped(String(scaled / scale)) + fraction;
  }

  function paint() {
    for (const el of document.querySelectorAll("[data-until]")) write(el, duration(el.dataset.until - now()));
    for (const el of document.querySelectorAll("[data-since]")) write(el, duration(now() - el.dataset.since));
    for (const el of document.querySelectorAll("[data-ticker]")) {
      const { ticker, from, base, digits } = el.dataset;
      const seconds = Math.max(0, Math.floor(now() - Number(from)));
      const text = amount(BigInt(base) + BigInt(seconds) * BigInt(ticker), Number(digits));
      write(el.querySelector("[data-whole]"), text.slice(0, -2));
      write(el.querySelector("[data-frac]"), text.slice(-2));
    }
    localTimes();
    markStale();
  }

  /** Only when it differs: writing the same text again would still disturb a selection. */
  function write(el, text) {
    if (el.textContent !== text) el.textContent = text;
  }

  // ------------------------------------------------------------------ the reader's own zone

  const YEAR_S = 31_536_000;

  function remember(name, value) {
    const secure = location.protocol === "https:" ? ";secure" : "";
    document.cookie = `${name}=${value};path=/;max-age=${YEAR_S};samesite=lax${secure}`;
  }

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const fromServer = document.cookie.split("; ").includes(`tz=${zone}`); // then its times are right
  remember("tz", zone); // the next page comes in this zone from the server
  const language = root.lang || undefined;
  const time = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  const day = new Intl.DateTimeFormat(language, { dateStyle: "medium" });
  const clock = new Intl.DateTimeFormat(language, time);

  /** "14:03:22 GMT+1" in this order in every language, as the server writes it. */
  function hourAndZone(moment) {
    const parts = Object.fromEntries(clock.formatToParts(moment).map((part) => [part.type, part.value]));
    return `${parts.hour}:${parts.minute}:${parts.second} ${parts.timeZoneName}`;
  }

  function localTimes() {
    for (const el of document.querySelectorAll("time[data-local]")) {
      const moment = new Date(el.dateTime);
      delete el.dataset.local;
      if (fromServer || Number.isNaN(moment.getTime())) continue;
      el.title = el.textContent.trim();
      const date = day.format(moment);
      const at = hourAndZone(moment);
      el.textContent = date === day.format(new Date(now() * 1000)) ? at : `${date} ${at}`;
    }
    for (const el of document.querySelectorAll("[data-zone-text]")) write(el, el.dataset.zoneText.replace("{zone}", zone));
  }

  // ------------------------------------------------------------------ live marker

  // A stream that says nothing for this long is called stale. The server sends an event at least every 15 s; comments do
  // not count, htmx does not tell of them.
  const STALE_AFTER_S = 40;
  let heard = now();

  for (const name of ["htmx:sse:after:connection", "htmx:sse:after:message"]) {
    document.addEventListener(name, () => { heard = now(); });
  }
  document.addEventListener("htmx:sse:error", () => { heard = Math.min(heard, now() - STALE_AFTER_S); });

  function markStale() {
    const stale = now() - heard >= STALE_AFTER_S;
    for (const el of document.querySelectorAll(".live[data-fresh]")) {
      el.dataset.live = stale ? "stale" : "ok";
      write(el, stale ? el.dataset.stale.replace("{age}", duration(now() - heard)) : el.dataset.fresh);
    }
  }

  // ------------------------------------------------------------------ toasts

  const TOAST_MS = 5000;

  function toast(message) {
    const box = document.getElementById("toasts");
    if (!box || !message) return;
    const item = document.createElement("div");
    item.className = "toast";
    item.textContent = message;
    if (box.showPopover && !box.matches(":popover-open")) box.showPopover();
    box.append(item);
    setTimeout(() => {
      item.remove();
      if (!box.children.length && box.hidePopover) box.hidePopover();
    }, TOAST_MS);
  }

  function messagesToToasts() {
    for (const notice of document.querySelectorAll(".notice[data-toast]")) {
      const list = notice.parentElement;
      toast(notice.textContent.trim());
      notice.remove();
      if (list.matches(".messages") && !list.children.length) list.remove();
    }
  }

  // ------------------------------------------------------------------ copy, dialogs, menus, theme

  const COPIED_MS = 2000;

  async function copy(button) {
    const text = button.parentElement.querySelector("[data-copy-text]");
    const label = button.querySelector("[data-label]");
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      // No clipboard without HTTPS or permission: select the text, so that the reader's own keys copy it.
      getSelection().selectAllChildren(text);
      return;
    }
    button.classList.add("done");
    label.textContent = button.dataset.copied;
    setTimeout(() => {
      button.classList.remove("done");
      label.textContent = button.dataset.copy;
    }, COPIED_MS);
  }

  function closeMenus(except) {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(except)) menu.open = false;
  }

  document.addEventListener("click", (event) => {
    const copyButton = event.target.closest("[data-copy]");
    if (copyButton) copy(copyButton);
    const opener = event.target.closest("[data-dialog]");
    const dialog = opener && document.getElementById(opener.dataset.dialog);
    if (dialog) {
      event.preventDefault(); // the opener may be a link to a page that asks the same
      dialog.showModal();
    }
    event.target.closest("[data-close]")?.closest("dialog")?.close();
    closeMenus(event.target);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const summary = document.querySelector("details.menu[open] > summary");
    if (!summary) return;
    closeMenus(null);
    summary.focus();
  });

  const THEMES = ["auto", "light", "dark"];

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-theme-form]")) return;
    event.preventDefault();
    const button = event.target.querySelector("[name=theme]");
    const next = (theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    const theme = next(root.dataset.theme);
    root.dataset.theme = theme;
    for (const other of document.querySelectorAll("[data-theme-form] [name=theme]")) other.value = next(theme);
    remember("theme", theme);
    toast(button.dataset[`said${theme[0].toUpperCase()}${theme.slice(1)}`]);
    document.dispatchEvent(new CustomEvent("lessor:theme"));
  });

  paint();
  setInterval(paint, 1000);
  messagesToToasts();
})();
