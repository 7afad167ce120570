// Keeps an open page up to date: when the server tells that its files have changed, the page is fetched again and its
// content replaced, unless somebody is typing or choosing in it. Everything works without this script.
"use strict";

const main = () => document.getElementById("main");

function busy() {
  const focus = document.activeElement;
  const typing = focus && main().contains(focus) && focus.matches("input, select, textarea");
  return typing || main().querySelector("input:checked, details.visit[open] textarea") !== null || main().contains(window.getSelection().focusNode) && !window.getSelection().isCollapsed;
}

async function refresh() {
  if (busy()) return false;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return false;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
  if (!found || busy()) return false;
  const open = [...main().querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...main().querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  main().replaceWith(found);
  [...found.querySelectorAll("details")].forEach((one, place) => { if (place in open) one.open = open[place]; });
  [...found.querySelectorAll(".scroll")].forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
  return true;
}

function follow() {
  if (!main() || !("stamp" in main().dataset)) return;
  let wanted = main().dataset.stamp, last = Date.now(), working = false;
  let source = null;
  // Only a tab that is seen listens: browsers hold six connections to a host, and tabs beyond would load nothing.
  const listen = () => {
    if (source) source.close();
    source = document.hidden ? null : new EventSource("/events?run=" + encodeURIComponent(main().dataset.run));
    if (source) source.addEventListener("stamp", (event) => { wanted = event.data; });
  };
  document.addEventListener("visibilitychange", listen);
  listen();
  setInterval(async () => {
    const every = 1000 * Number(main().dataset.every || 0);
    const stale = wanted !== main().dataset.stamp || (every && Date.now() - last > every);
    if (!stale || working || document.hidden) return;
    working = true;
    try { if (await refresh()) last = Date.now(); } catch { /* The server is away: EventSource tries again. */ }
    working = false;
  }, 500);
}

function sendOnChoice() {
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-send]");
    if (form && event.target.matches("select")) form.requestSubmit();
  });
}

follow();
sendOnChoice();
