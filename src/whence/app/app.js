(() => {
  const start = () => {
    for (const [id, attributes] of [["whence-tip", { "aria-hidden": "true" }], ["whence-voice", { role: "status" }]]) {
      const made = document.createElement("div");
      made.id = id;
      made.className = id === "whence-tip" ? "whence" : "whence whence-unseen";
      made.hidden = id === "whence-tip";
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      document.body.append(made);
    }
    __EXPLANATIONS__
    keepFocus();
    document.addEventListener("change", checkFiles, { capture: true });
    document.addEventListener("drop", checkFiles, { capture: true });
  };

  // A click replaces its button by another, or redraws the choices: move the focus to the replacement. Screen readers
  // announce each new prediction.
  function keepFocus() {
    const find = (selector) => document.querySelector(selector);
    const pairs = [["whence-explain", "whence-cancel"], ["whence-attempt", "whence-attempt-cancel"], ["whence-flip", "whence-flip-cancel"]];
    let focusTargets = null; // selectors; the first that matches gets the focus
    let announced = "";
    document.addEventListener("click", (event) => {
      if (!(event.target instanceof Element)) return;
      const pair = pairs.find((ids) => ids.some((id) => event.target.closest("#" + id)));
      const chosen = event.target.closest("#whence-choice [data-ask]");
      if (pair) focusTargets = pair.map((id) => "#" + id).reverse();
      else if (chosen) focusTargets = [`#whence-choice button[data-ask="${chosen.dataset.ask}"]`];
      else focusTargets = null;
    }, { capture: true });
    new MutationObserver(() => {
      const lost = !document.activeElement || document.activeElement === document.body;
      const next = focusTargets && focusTargets.map(find).find((found) => found);
      if (lost && next) next.focus({ preventScroll: true });
      const now = find("#whence-answer h2")?.textContent || "";
      if (now && now !== announced) find("#whence-voice").textContent = now;
      announced = now;
    }).observe(document.body, { childList: true, subtree: true });
  }

  // Refuse a file that is no image, or too large, before it is uploaded.
  function checkFiles(event) {
    const place = event.target instanceof Element && event.target.closest("#whence-image");
    const files = [...((event.dataTransfer || event.target).files || [])];
    if (!place || !files.length) return;
    const wrong = files.find((file) => !file.type.startsWith("image/"));
    const large = files.find((file) => file.size > __UPLOAD__);
    if (wrong) showRefusal(place, `'${wrong.name}' is no picture: use a PNG, JPEG, WebP, GIF or BMP.`);
    else if (large) showRefusal(place, `'${large.name}' is too large: __SIZE__ at most.`);
    else return document.getElementById("whence-refused")?.remove();
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.type === "change") event.target.value = "";
  }

  function showRefusal(place, sentence) {
    const told = document.getElementById("whence-refused") || document.createElement("p");
    told.id = "whence-refused";
    told.className = "whence whence-said whence-problem";
    told.setAttribute("role", "alert");
    told.textContent = sentence;
    place.after(told);
  }

  // the page may be loaded before this script runs
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
