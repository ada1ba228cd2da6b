(() => {
  const begin = () => {
    for (const [id, attributes] of [["whence-tip", { "aria-hidden": "true" }], ["whence-voice", { role: "status" }]]) {
      const made = document.createElement("div");
      made.id = id;
      made.className = id === "whence-tip" ? "whence" : "whence whence-unseen";
      made.hidden = id === "whence-tip";
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      document.body.append(made);
    }
    __EXPLANATIONS__
    follow();
    document.addEventListener("change", guard, { capture: true });
    document.addEventListener("drop", guard, { capture: true });
  };

  // What was pressed gives way to another button, and choices are drawn anew: the focus goes along, and what the model
  // says is read out.
  function follow() {
    const find = (selector) => document.querySelector(selector);
    const pairs = [["whence-explain", "whence-cancel"], ["whence-attempt", "whence-attempt-cancel"], ["whence-flip", "whence-flip-cancel"]];
    let held = null; // selectors of which the first that is there has the focus
    let said = "";
    document.addEventListener("click", (event) => {
      if (!(event.target instanceof Element)) return;
      const pair = pairs.find((ids) => ids.some((id) => event.target.closest("#" + id)));
      const chosen = event.target.closest("#whence-choice [data-ask]");
      if (pair) held = pair.map((id) => "#" + id).reverse();
      else if (chosen) held = [`#whence-choice button[data-ask="${chosen.dataset.ask}"]`];
      else held = null;
    }, { capture: true });
    new MutationObserver(() => {
      const lost = !document.activeElement || document.activeElement === document.body;
      const next = held && held.map(find).find((found) => found);
      if (lost && next) next.focus({ preventScroll: true });
      const now = find("#whence-answer h2")?.textContent || "";
      if (now && now !== said) find("#whence-voice").textContent = now;
      said = now;
    }).observe(document.body, { childList: true, subtree: true });
  }

  // A file that is no picture, or too large, is not sent at all.
  function guard(event) {
    const place = event.target instanceof Element && event.target.closest("#whence-image");
    const files = [...((event.dataTransfer || event.target).files || [])];
    if (!place || !files.length) return;
    const wrong = files.find((file) => !file.type.startsWith("image/"));
    const large = files.find((file) => file.size > __UPLOAD__);
    if (wrong) tell(place, `'${wrong.name}' is no picture: use a PNG, JPEG, WebP, GIF or BMP.`);
    else if (large) tell(place, `'${large.name}' is too large: __SIZE__ at most.`);
    else return document.getElementById("whence-refused")?.remove();
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.type === "change") event.target.value = "";
  }

  function tell(place, sentence) {
    const told = document.getElementById("whence-refused") || document.createElement("p");
    told.id = "whence-refused";
    told.className = "whence whence-said whence-problem";
    told.setAttribute("role", "alert");
    told.textContent = sentence;
    place.after(told);
  }

  // the page may be there already when this is read
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
