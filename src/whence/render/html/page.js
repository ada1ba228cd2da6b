(() => {
  "use strict";
  const tip = document.getElementById("whence-tip");
  const voice = document.getElementById("whence-voice");
  const ITEM = "[data-s]";
  const walks = new WeakMap(); // what can be walked in, and the items in it
  let shown = null;

  const itemAt = (event) => (event.target instanceof Element ? event.target.closest(ITEM) : null);
  const nameOf = (item) => item.dataset.label || item.textContent;
  const scoreOf = (item) => item.dataset.s.replace(/-/g, "−");
  const short = (text) => (text.length > 120 ? text.slice(0, 119) + "…" : text);

  function itemsOf(group) {
    if (!walks.has(group)) walks.set(group, [...group.querySelectorAll(ITEM)]);
    return walks.get(group);
  }

  function element(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  }

  // -- the tip ------------------------------------------------------------------------------------------------

  function show(item, x) {
    shown = item;
    tip.replaceChildren(element("bdi", short(nameOf(item))), " ", element("b", scoreOf(item)));
    if (item.dataset.more) tip.append(element("small", short(item.dataset.more)));
    const sources = sourcesOf(item);
    if (sources.length) tip.append(element("small", toldOf(sources)));
    for (const [source] of sources) source.classList.add("whence-source");
    tip.hidden = false;
    place(item, x);
  }

  // what an item drew on, and how much went there; those that are on show are marked while it is pointed at
  function sourcesOf(item) {
    unmark();
    const group = item.closest("[data-walk]");
    return (item.dataset.drew || "").split(" ").filter(Boolean).map((said) => {
      const [number, amount] = said.split(":");
      return [group.querySelector(`[data-i="${number}"]`), amount];
    }).filter(([source]) => source);
  }

  const toldOf = (sources) =>
    "drew on " + sources.map(([source, amount]) => `${short(nameOf(source))} ${amount.replace(/-/g, "−")}`).join(", ");

  function unmark() {
    for (const before of document.querySelectorAll(".whence-source")) before.classList.remove("whence-source");
  }

  function place(item, x) {
    const lines = [...item.getClientRects()];
    const line = lines.find((r) => x !== undefined && r.left <= x && x <= r.right) || lines[0];
    if (!line) return hide();
    const left = line.left + line.width / 2 - tip.offsetWidth / 2;
    const above = line.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${above >= 4 ? above : line.bottom + 8}px`;
  }

  // what was visited by key, tap or button keeps its tip when the pointer moves on
  const isKept = (item) => item === document.activeElement || item.classList.contains("whence-found");

  function hide() {
    shown = null;
    tip.hidden = true;
    unmark();
  }

  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const item = itemAt(event);
    if (item) show(item, event.clientX);
    else if (shown && !isKept(shown)) hide();
  });
  document.addEventListener("click", (event) => {
    const item = itemAt(event);
    if (!item) return hide();
    if (getSelection().isCollapsed) visit(item, true);
  });
  document.addEventListener("focusin", (event) => {
    const item = itemAt(event);
    if (!item) return hide();
    const sources = sourcesOf(item);
    show(item);
    voice.textContent = `${short(nameOf(item))}, ${scoreOf(item)}${sources.length ? "; " + toldOf(sources) : ""}`;
  });
  document.addEventListener("scroll", () => {
    if (shown && isKept(shown)) place(shown);
    else hide();
  }, { capture: true, passive: true });

  // -- walking with the keys ----------------------------------------------------------------------------------

  function visit(item, still) {
    const group = item.closest("[data-walk]");
    for (const before of group.querySelectorAll('[tabindex="0"]')) before.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    item.focus({ preventScroll: true });
    if (!still) item.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(item);
  }

  function step(key, item, columns) {
    const onward = getComputedStyle(item.parentElement).direction === "rtl" ? -1 : 1;
    return { ArrowRight: onward, ArrowLeft: -onward, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[key] || 0;
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const item = itemAt(event);
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const group = item.closest("[data-walk]");
    const by = step(event.key, item, Number(group.dataset.walk));
    if (!by) return;
    event.preventDefault();
    const items = itemsOf(group);
    const at = items.indexOf(item) + by;
    if (Math.abs(by) !== 1 && Number.isFinite(by) && !items[at]) return;
    visit(items[Math.max(0, Math.min(at, items.length - 1))]);
  });

  // -- long texts ---------------------------------------------------------------------------------------------

  function jump(button) {
    const long = button.closest(".whence-long");
    const items = itemsOf(long.querySelector("[data-walk]"));
    if (!items.length) return;
    long.ranked ||= [...items].sort((a, b) => Math.abs(b.dataset.s) - Math.abs(a.dataset.s));
    const rank = Math.max(0, Math.min((long.rank ?? -1) + Number(button.dataset.jump), items.length - 1));
    long.rank = rank;
    long.querySelector("[data-rank]").textContent = `strongest ${rank + 1} of ${items.length.toLocaleString("en")}`;
    long.querySelector('[data-jump="1"]').textContent = "Next strongest";
    long.querySelector('[data-jump="-1"]').disabled = rank === 0;
    const item = long.ranked[rank];
    mark(long, item);
    centre(item, long.querySelector(".whence-scroll"));
    show(item);
    voice.textContent = `${short(nameOf(item))}, ${scoreOf(item)}`;
  }

  function centre(item, box) {
    const { top, height } = item.getBoundingClientRect();
    const offset = top + height / 2 - box.getBoundingClientRect().top - box.clientHeight / 2;
    box.scrollTo({ top: box.scrollTop + offset, behavior: "instant" });
    item.scrollIntoView({ block: "nearest" }); // the box itself may be out of sight, or unfolded
  }

  function mark(long, item) {
    for (const before of long.querySelectorAll(".whence-found")) before.classList.remove("whence-found");
    item.classList.add("whence-found");
  }

  function unfold(button) {
    const open = button.closest(".whence-long").classList.toggle("whence-open");
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Show less" : "Show all";
  }

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    const button = event.target.closest("button");
    if (button?.dataset.jump) jump(button);
    if (button && "unfold" in button.dataset) unfold(button);
    const map = event.target.closest(".whence-map");
    if (map) {
      const box = map.previousElementSibling;
      const { top, height } = map.getBoundingClientRect();
      box.scrollTop = ((event.clientY - top) / height) * box.scrollHeight - box.clientHeight / 2;
    }
  });

  // -- pictures -----------------------------------------------------------------------------------------------

  document.addEventListener("input", (event) => {
    if (!("fade" in event.target.dataset)) return;
    event.target.closest(".whence-card").style.setProperty("--whence-fade", event.target.value / 100);
  });
})();
