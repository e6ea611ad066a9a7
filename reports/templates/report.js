"use strict";
// The page is complete without this: it only opens what a link or the printer asks for.
const all = [...document.querySelectorAll("details.case")];
const setAll = (open) => all.forEach((one) => { one.open = open; });
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (!(target instanceof HTMLDetailsElement)) { return; }
  target.open = true;
  target.scrollIntoView();
  target.querySelector("summary").focus({ preventScroll: true });
};
if (all.length) {
  document.getElementById("tools").hidden = false;
  document.getElementById("open-all").addEventListener("click", () => setAll(true));
  document.getElementById("close-all").addEventListener("click", () => setAll(false));
}
addEventListener("hashchange", reveal);
addEventListener("beforeprint", () => setAll(true));
reveal();
