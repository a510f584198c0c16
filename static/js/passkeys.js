// Passkeys: asks the browser to make or to use one, and sends the answer with the form. Without this file the other ways
// to sign in work as before. Forms: data-passkey="create", "get" (options in #passkey-options) or "login" (options fetched).
"use strict";

(() => {
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  const text = (buffer) =>
    btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const described = (list) => (list || []).map((key) => ({ ...key, id: bytes(key.id) }));

  /** The options as the browser wants them: bytes in place of base64url. */
  function forBrowser(options, form) {
    const wanted = { ...options.publicKey, challenge: bytes(options.publicKey.challenge) };
    if (wanted.allowCredentials) wanted.allowCredentials = described(wanted.allowCredentials);
    if (wanted.excludeCredentials) wanted.excludeCredentials = described(wanted.excludeCredentials);
    if (wanted.user) wanted.user = { ...wanted.user, id: bytes(wanted.user.id) };
    const alone = form.querySelector("[name=passwordless]");
    if (wanted.authenticatorSelection && alone) {
      const need = alone.checked ? "required" : "discouraged";
      const verify = alone.checked ? "required" : wanted.authenticatorSelection.userVerification;
      wanted.authenticatorSelection = {
        ...wanted.authenticatorSelection, residentKey: need, requireResidentKey: alone.checked, userVerification: verify,
      };
    }
    return wanted;
  }

  /** What the browser answered, as the server wants it. */
  function forServer(credential) {
    const response = {};
    for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
      if (credential.response[name]) response[name] = text(credential.response[name]);
    }
    if (credential.response.getTransports) response.transports = credential.response.getTransports();
    return {
      id: credential.id,
      rawId: text(credential.rawId),
      type: credential.type,
      authenticatorAttachment: credential.authenticatorAttachment,
      clientExtensionResults: credential.getClientExtensionResults(),
      response,
    };
  }

  async function options(form) {
    if (form.dataset.passkey !== "login") {
      const given = JSON.parse(document.getElementById("passkey-options").textContent);
      return given.creation_options || given.request_options;
    }
    const answer = await fetch(form.action, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`passkey options: ${answer.status}`);
    return (await answer.json()).request_options;
  }

  function say(form, words) {
    const place = form.querySelector("[data-passkey-error]");
    place.textContent = words;
    place.closest(".notice").hidden = !words;
  }

  async function use(form) {
    say(form, "");
    if (!window.PublicKeyCredential) return say(form, form.dataset.saidMissing);
    try {
      const publicKey = forBrowser(await options(form), form);
      const making = form.dataset.passkey === "create";
      const credential = await (making ? navigator.credentials.create({ publicKey }) : navigator.credentials.get({ publicKey }));
      form.querySelector("[name=credential]").value = JSON.stringify(forServer(credential));
    } catch {
      return say(form, form.dataset.saidCancelled); // closed, timed out, or no key here: the browser does not tell which
    }
    form.submit();
  }

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-passkey]")) return;
    event.preventDefault();
    use(event.target);
  });
})();
