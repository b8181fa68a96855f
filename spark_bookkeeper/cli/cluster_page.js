"use strict";
// Brings the page up to date in its place: what is open stays open, and the focus where it is.
addEventListener("DOMContentLoaded", () => {
  const follow = document.getElementById("follow");
  document.getElementById("live").hidden = false;
  const keep = (element) => element.id || element.getAttribute("aria-label")
    || (element.matches("summary") ? element.parentElement.id : element.textContent);
  async function again() {
    if (!follow.checked || document.hidden) return;
    let page;
    try {
      const answer = await fetch("/");
      if (!answer.ok) throw new Error(answer.statusText);
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch (error) {
      document.title = "no answer: BookKeeper cluster";
      return;
    }
    document.title = page.title;
    const main = document.getElementById("main");
    const open = new Set([...main.querySelectorAll("details[open]")].map((each) => each.id));
    const seen = new Map([...main.querySelectorAll(".scroll")].map((e) => [keep(e), e.scrollLeft]));
    const focused = main.contains(document.activeElement) ? keep(document.activeElement) : null;
    const fresh = page.getElementById("main");
    for (const each of fresh.querySelectorAll("details")) each.open = open.has(each.id);
    main.replaceChildren(...fresh.childNodes);
    for (const each of main.querySelectorAll(".scroll")) each.scrollLeft = seen.get(keep(each)) || 0;
    if (focused) {
      for (const each of main.querySelectorAll("a, summary, .scroll")) {
        if (keep(each) === focused) { each.focus({ preventScroll: true }); break; }
      }
    }
    document.getElementById("at").replaceWith(page.getElementById("at"));
  }
  setInterval(again, SECONDS * 1000);
});
