#include "serve/status_page.h"

#include <string>

namespace holdfast::serve {
namespace {

// In three parts, since a compiler may limit the length of one literal to 64 KiB, and so that
// markup, style and script are found. Texts from outside go into the page by textContent alone.
constexpr std::string_view kHead = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>holdfast</title>
<style>
:root {
  color-scheme: light dark;
  --bg: #f6f7f5; --card: #ffffff; --fg: #1b2327; --soft: #64717a; --rule: #dde2e3;
  --teal: #14746f; --teal-soft: #14746f1f; --amber: #c96a12; --violet: #6b52ae; --sky: #2f7fc1;
  --good: #1f7a3d; --bad: #b3261e; --bad-soft: #b3261e17; --track: #e8ecec;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #101416; --card: #181d20; --fg: #e5eaec; --soft: #93a0a7; --rule: #2a3236;
    --teal: #4cc2b4; --teal-soft: #4cc2b422; --amber: #efa052; --violet: #a993e6; --sky: #6cb4ee;
    --good: #6ccb88; --bad: #ff8b80; --bad-soft: #ff8b801c; --track: #242b2f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 20px 20px 56px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px;
  margin-bottom: 14px; }
h1 { font-size: 19px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 12px; margin: 0 0 10px; color: var(--soft); font-weight: 600;
  text-transform: uppercase; letter-spacing: .06em; }
.soft { color: var(--soft); }
.push { margin-left: auto; }
.banner { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 12px; padding: 12px 16px;
  border-radius: 10px; border: 1px solid var(--rule); border-left: 6px solid var(--soft);
  background: var(--card); margin-bottom: 14px; }
.banner b { font-size: 17px; }
.banner.serving { border-left-color: var(--good); } .banner.serving b { color: var(--good); }
.banner.held { border-left-color: var(--amber); } .banner.held b { color: var(--amber); }
.banner.bad { border-color: var(--bad); background: var(--bad-soft); }
.banner.bad b { color: var(--bad); }
.banner span { overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(12, 1fr); gap: 14px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 16px; min-width: 0; grid-column: span 12; }
@media (min-width: 760px) { .w4 { grid-column: span 4; } .w6 { grid-column: span 6; }
  .w8 { grid-column: span 8; } }
.big { font-size: 26px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.15; }
.big small { font-size: 13px; font-weight: 400; color: var(--soft); }
.row { display: flex; justify-content: space-between; gap: 12px; padding: 2px 0;
  font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; }
.line { fill: none; stroke: var(--teal); stroke-width: 1.6; vector-effect: non-scaling-stroke; }
.area { fill: var(--teal-soft); }
.line2 { fill: none; stroke: var(--amber); stroke-width: 1.4; vector-effect: non-scaling-stroke; }
.mark { stroke: var(--violet); stroke-width: 1; stroke-dasharray: 3 3;
  vector-effect: non-scaling-stroke; }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: 11px; }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--track);
  margin: 8px 0; }
.bar i { display: block; height: 100%; }
.key { display: flex; flex-wrap: wrap; gap: 2px 16px; margin-top: 8px; color: var(--soft);
  font-size: 12px; }
.key i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 5px; }
.teal { background: var(--teal); } .sky { background: var(--sky); }
.amber { background: var(--amber); } .violet { background: var(--violet); }
.track { background: var(--track); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 12px; }
tr:last-child td { border-bottom: 0; }
.l { text-align: left; }
td.wide { width: 34%; min-width: 180px; } td .bar { margin: 0; height: 10px; }
.good { color: var(--good); } .warn { color: var(--amber); } .fail { color: var(--bad); }
.error { padding: 7px 0; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
.error:last-child { border-bottom: 0; }
button, input { font: inherit; color: inherit; background: var(--bg); border: 1px solid var(--rule);
  border-radius: 7px; padding: 4px 11px; }
button { cursor: pointer; } button:hover { border-color: var(--soft); }
button:focus-visible, input:focus-visible { outline: 2px solid var(--teal); }
</style>
</head>
)html";

constexpr std::string_view kBody = R"html(<body>
<main>
<header>
  <h1>holdfast</h1><span id="model"></span>
  <span class="soft push" id="about"></span>
</header>
<div class="banner" id="banner" role="status"><b id="state">connecting</b>
  <span id="why" class="soft"></span></div>
<div class="grid">
  <section class="w8"><h2>Generated tokens a second</h2>
    <div class="big"><span id="rate">&ndash;</span> <small id="rate2"></small></div>
    <svg id="spark" viewBox="0 0 600 110" height="110" preserveAspectRatio="none"
      aria-label="generated tokens a second over the last two minutes"></svg>
    <div class="axis"><span>2 min ago</span><span id="sparkmost"></span><span>now</span></div>
  </section>
  <section class="w4"><h2>Weights</h2>
    <div class="big"><span id="version"></span></div>
    <div class="row"><span class="soft">epoch</span><span id="epoch"></span></div>
    <div class="row"><span class="soft">commits</span><span id="commits"></span></div>
    <div class="row"><span class="soft">roll-backs</span><span id="rollbacks"></span></div>
    <div class="row"><span class="soft">longest gap at a commit</span><span id="gap"></span></div>
    <div class="row"><span class="soft">paused in all</span><span id="paused"></span></div>
  </section>
  <section class="w4"><h2>Queue</h2>
    <div class="big"><span id="running">&ndash;</span> <small>running</small>
      <span id="waiting">&ndash;</span> <small>waiting</small></div>
    <svg id="queue" viewBox="0 0 300 60" height="60" preserveAspectRatio="none"
      aria-label="running and waiting requests over the last two minutes"></svg>
    <div class="key"><span><i class="teal"></i>running</span>
      <span><i class="amber"></i>waiting</span></div>
  </section>
  <section class="w4"><h2>KV pages</h2>
    <div class="big"><span id="kv">&ndash;</span> <small id="kvof"></small></div>
    <div class="bar" id="kvbar"></div>
    <div class="key"><span><i class="teal"></i>in use</span>
      <span><i class="sky"></i>cached prefixes</span><span><i class="track"></i>free</span></div>
  </section>
  <section class="w4"><h2>Work since start</h2>
    <div class="row"><span class="soft">steps</span><span id="steps"></span></div>
    <div class="row"><span class="soft">rows in the last step</span><span id="rows"></span></div>
    <div class="row"><span class="soft">prefix cache hits</span><span id="hits"></span></div>
    <div class="row"><span class="soft">preemptions</span><span id="preempted"></span></div>
    <div class="row"><span class="soft">connections</span><span id="connections"></span></div>
  </section>
  <section id="openbox" hidden><h2>Reload in progress</h2>
    <div class="row"><span id="openwhat"></span><span id="openbytes"></span></div>
    <div class="bar" id="openbar"></div><div class="soft" id="openwait"></div></section>
  <section><h2>Epochs</h2><div class="scroll" id="reloads"></div>
    <div class="key" id="phases"><span><i class="sky"></i>stage</span>
      <span><i class="violet"></i>prepare</span><span><i class="amber"></i>commit (no step runs)
      </span><span><i class="teal"></i>verify</span></div></section>
  <section class="w6"><h2>Census</h2><div id="census" class="soft">Counts every slot, and the home
    of every captured address. It reads all weights, between two steps.</div>
    <p><button id="count" type="button">Count now</button></p></section>
  <section class="w6"><h2>Last errors</h2><div id="errors" class="soft">none</div></section>
</div>
</main>
)html";

constexpr std::string_view kScript = R"html(<script>
"use strict";
const $ = id => document.getElementById(id);
const put = (id, text) => { $(id).textContent = text; };
const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, fields) => {
  const out = document.createElementNS(SVG, tag);
  for (const name in fields) out.setAttribute(name, fields[name]);
  return out;
};
const make = (tag, className, ...children) => {
  const out = document.createElement(tag);
  if (className) out.className = className;
  out.append(...children);
  return out;
};
const count = n => n >= 1e6 ? (n / 1e6).toFixed(2) + " M" : n.toLocaleString("en");
const bytes = n => {
  let unit = 0;
  for (; n >= 1000 && unit < 4; ++unit) n /= 1000;
  return (unit ? n.toFixed(1) : n) + " " + ["B", "kB", "MB", "GB", "TB"][unit];
};
const ms = n => n >= 1000 ? (n / 1000).toFixed(2) + " s" : n.toFixed(n < 10 ? 2 : 1) + " ms";
const span = s => s >= 86400 ? (s / 86400).toFixed(1) + " d" : s >= 3600 ? (s / 3600).toFixed(1) +
  " h" : s >= 60 ? (s / 60).toFixed(1) + " min" : s.toFixed(0) + " s";
const clock = t => new Date(t).toLocaleTimeString("en-GB");

const KEPT = 120;        // seconds that the charts show
const history = [];      // what each poll said: {t, rate, running, waiting, epoch}
let before = null, connectionLost = 0, token = sessionStorage.getItem("holdfast-token") || "";

const ask = path => fetch(path, {cache: "no-store",
  headers: token ? {Authorization: "Bearer " + token} : {}});

const WORDS = {
  serving: ["serving", "serving", ""],
  pausing: ["held", "pausing", "waiting for the step to end"],
  paused: ["held", "paused", "no step runs until it is resumed; requests wait"],
  sleeping: ["held", "sleeping", "no step runs until it is woken"],
  draining: ["held", "draining", "no new request is accepted"],
  poisoned: ["bad", "poisoned", "no token is given until one complete reload succeeds"],
  failed: ["bad", "failed", "the engine has ended"],
};
function banner(state, why) {
  const [look, word, meaning] = WORDS[state] || ["bad", state, ""];
  $("banner").className = "banner " + look;
  put("state", word);
  $("why").className = "soft";
  put("why", [meaning, why].filter(Boolean).join(": "));
  document.title = (look === "serving" ? "" : word + " \u00b7 ") + "holdfast";
}

function points(list, value, most, width, height, now) {
  return list.map(p => [width * (1 - (now - p.t) / 1000 / KEPT),
    height - 3 - (height - 8) * value(p) / most]);
}
const path = list => list.map((p, i) => (i ? "L" : "M") + p[0].toFixed(1) + " " + p[1].toFixed(1))
  .join("");
function drawSpark(now) {
  const shown = history.filter(p => p.rate !== null);
  const most = Math.max(1, ...shown.map(p => p.rate));
  const line = points(shown, p => p.rate, most, 600, 110, now);
  const parts = [];
  if (line.length > 1) {
    const ground = `L${line.at(-1)[0]} 110L${line[0][0]} 110Z`;
    parts.push(svg("path", {class: "area", d: path(line) + ground}));
    parts.push(svg("path", {class: "line", d: path(line)}));
  }
  for (let i = 1; i < history.length; ++i) {
    if (history[i].epoch === history[i - 1].epoch) continue;
    const x = 600 * (1 - (now - history[i].t) / 1000 / KEPT);
    parts.push(svg("line", {class: "mark", x1: x, x2: x, y1: 0, y2: 110}));
  }
  $("spark").replaceChildren(...parts);
  put("sparkmost", shown.length ? "most " + count(Math.round(most)) + ", dashed: commits" : "");
}
function drawQueue(now) {
  const most = Math.max(1, ...history.map(p => Math.max(p.running, p.waiting)));
  $("queue").replaceChildren(
    svg("path", {class: "line", d: path(points(history, p => p.running, most, 300, 60, now))}),
    svg("path", {class: "line2", d: path(points(history, p => p.waiting, most, 300, 60, now))}));
}
function bar(target, parts) {
  target.replaceChildren(...parts.map(([look, share]) => {
    const part = make("i", look);
    part.style.width = 100 * share + "%";
    return part;
  }));
  return target;
}
)html";

constexpr std::string_view kReloads = R"html(
function drawReloads(list) {
  $("phases").hidden = !list.length;
  if (!list.length) {
    $("reloads").replaceChildren(make("span", "soft", "No reload yet: these are the weights that " +
      "were loaded at the start."));
    return;
  }
  const phases = r => [["sky", r.stage_ms], ["violet", r.prepare_ms], ["amber", r.pause_us / 1000],
    ["teal", r.verify_ms]];
  const longest = Math.max(1e-3, ...list.map(r => phases(r).reduce((sum, p) => sum + p[1], 0)));
  const head = make("tr", "", ...["time", "epoch", "version", "state", "", "stage", "prepare",
    "commit", "verify", "bytes", "moved"].map((text, i) =>
      make("th", i < 5 && i !== 1 ? "l" : "", text)));
  const rows = list.slice().reverse().slice(0, 24).map(r => {
    const good = r.state === "committed";
    const row = make("tr", "",
      make("td", "l", clock(r.ended_unix_ms)), make("td", "", r.from_epoch + " \u2192 " +
        (good ? r.to_epoch : r.from_epoch)),
      make("td", "l", r.version || "\u2013"),
      make("td", "l " + (good ? "good" : r.state === "poisoned" ? "fail" : "warn"),
        r.state.replace("_", " ")),
      make("td", "wide", bar(make("div", "bar"), phases(r).map(p => [p[0], p[1] / longest]))),
      ...phases(r).map(p => make("td", "", p[1] ? ms(p[1]) : "\u2013")),
      make("td", "", bytes(r.source_bytes)),
      make("td", r.slots_moved ? "fail" : "", String(r.slots_moved)));
    row.title = [r.strategy, r.source, ...r.warnings].filter(Boolean).join("\n");
    return row;
  });
  $("reloads").replaceChildren(
    make("table", "", make("thead", "", head), make("tbody", "", ...rows)));
}
function drawOpen(r) {
  const open = ["staging", "ready", "verifying"].includes(r.phase);
  $("openbox").hidden = !open;
  if (!open) return;
  put("openwhat", r.phase + (r.version ? " " + r.version : "") + (r.pushed ? ", pushed" : "") +
    (r.source ? " from " + r.source : ""));
  put("openbytes", bytes(r.bytes_arrived) + " of " + bytes(r.bytes_expected));
  bar($("openbar"), [["sky", r.bytes_expected ? r.bytes_arrived / r.bytes_expected : 0]]);
  put("openwait", (r.awaited_count ? "awaits " + r.awaited.join(", ") + (r.awaited_count >
    r.awaited.length ? " and " + (r.awaited_count - r.awaited.length) + " more" : "") : "") +
    (r.deadline_left_ms ? " \u00b7 " + ms(r.deadline_left_ms) + " left" : ""));
}
function drawErrors(s) {
  const list = s.reloads.filter(r => r.error).reverse().slice(0, 8).map(r =>
    make("div", "error", make("span", "soft", clock(r.ended_unix_ms) + " reload " +
      (r.version || r.id) + " "), r.error));
  if (s.reload.phase === "failed" && s.reload.error && !list.length) {
    list.unshift(make("div", "error", s.reload.error));
  }
  if (s.failure) list.unshift(make("div", "error fail", s.failure));
  $("errors").className = list.length ? "" : "soft";
  $("errors").replaceChildren(...(list.length ? list : ["none"]));
}
function show(s) {
  connectionLost = 0;
  banner(s.state, s.failure);
  put("model", s.model);
  put("about", "version " + s.holdfast_version + " \u00b7 up " + span(s.uptime_s));
  const seconds = before ? (s.now_unix_ms - before.now_unix_ms) / 1000 : 0;
  const rate = name => seconds > 0 ?
    Math.max(0, (s.counters[name] - before.counters[name]) / seconds) : null;
  const generated = rate("generated_tokens"), prompted = rate("prompt_tokens");
  const stepped = rate("steps");
  const now = Date.now();
  history.push({t: now, rate: generated, running: s.requests.running, waiting: s.requests.waiting,
    epoch: s.epoch});
  while (history.length && now - history[0].t > KEPT * 1000) history.shift();
  before = s;
  if (generated !== null) {
    put("rate", count(Math.round(generated)));
    put("rate2", "and " + count(Math.round(prompted)) + " prompt tokens, " +
      count(Math.round(stepped)) + " steps");
  }
  put("version", s.version);
  put("epoch", s.epoch);
  put("commits", count(s.counters.commits));
  put("rollbacks", count(s.counters.roll_backs));
  put("gap", s.counters.commits && s.step_gap_us_max_at_commit ?
    ms(s.step_gap_us_max_at_commit / 1000) : "\u2013");
  put("paused", s.paused_seconds ? span(s.paused_seconds) : "\u2013");
  put("running", count(s.requests.running));
  put("waiting", count(s.requests.waiting));
  const pages = Math.max(1, s.kv.pages);
  put("kv", Math.round(100 * s.kv.used / pages) + " %");
  put("kvof", "in use, " + count(s.kv.used) + " of " + count(s.kv.pages));
  bar($("kvbar"), [["teal", s.kv.used / pages], ["sky", s.kv.cached / pages]]);
  put("steps", count(s.counters.steps));
  put("rows", count(s.last_step_rows));
  const asked = s.counters.prefix_queries;
  put("hits", asked ? Math.round(100 * s.counters.prefix_hits / asked) + " % of " + count(asked) +
    " tokens" : "\u2013");
  put("preempted", count(s.counters.preemptions));
  put("connections", count(s.connections));
  drawSpark(now); drawQueue(now); drawOpen(s.reload); drawReloads(s.reloads); drawErrors(s);
}
function askForToken() {
  if ($("token")) return;
  banner("locked", "");
  const field = make("input");
  field.id = "token"; field.type = "password"; field.placeholder = "control token";
  field.setAttribute("aria-label", "control token");
  const form = make("form", "", field, " ", make("button", "", "Open"));
  form.onsubmit = event => {
    event.preventDefault();
    token = field.value;
    sessionStorage.setItem("holdfast-token", token);
    $("why").replaceChildren();
    poll();
  };
  $("why").replaceChildren(form);
}
let polling = 0;
async function poll() {
  clearTimeout(polling);
  try {
    const answer = await ask("/status.json");
    if (answer.status === 401 || answer.status === 403) return askForToken();
    show(await answer.json());
  } catch (error) {
    if (++connectionLost > 1) banner("no answer", "the server cannot be reached");
  }
  polling = setTimeout(poll, 1000);
}
async function takeCensus() {
  $("count").disabled = true;
  try {
    const answer = await ask("/census?summary=true");
    const c = await answer.json();
    if (!answer.ok) throw new Error(c.error.message);
    const moved = before.reloads.reduce((sum, r) => sum + r.slots_moved, 0);
    const lost = c.homeless.length, other = c.rehomed.length;
    $("census").className = "";
    $("census").replaceChildren(
      make("table", "", make("tbody", "", ...c.classes.map(one => make("tr", "",
        make("td", "l", one.class), make("td", "", count(one.slots) + " slots"),
        make("td", "", bytes(one.bytes)))))),
      make("p", lost || other || moved ? "fail" : "good", `epoch ${c.epoch}: ` +
        `${count(c.captured_addresses)} captured addresses, ${lost} without a home, ` +
        `${other} in another slot; ${moved} slots moved by reloads`));
  } catch (error) {
    $("census").className = "fail";
    put("census", "The census failed: " + error.message);
  }
  $("count").disabled = false;
}
$("count").onclick = takeCensus;
poll();
</script>
</body>
</html>
)html";

}  // namespace

std::string_view status_page_html() {
  static const std::string page = [] {
    std::string out;
    for (const std::string_view part : {kHead, kBody, kScript, kReloads}) out += part;
    return out;
  }();
  return page;
}

}  // namespace holdfast::serve
