"use strict";
// The page: takes the document that is in it, and asks for newer ones where it is live.

const part = (id) => document.getElementById(id);
const PHASES = {"not begun": ["○", ""], starting: ["◔", ""], running: ["▶", "good"], silent: ["?", "bad"], finished: ["✓", "good"],
  stopped: ["❚❚", ""], failed: ["✗", "bad"], killed: ["✗", "bad"]};
const ASK_EVERY = 1500, ASK_HIDDEN = 15000;

let shown = JSON.parse(part("data").textContent);
let chosen = 0;
const charts = CHARTS.map((kind) => new Chart(kind, part("charts")));
const timeline = new TimelineView(part("timeline"));
const cards = [];
const drawn = {};

function card(run, i, runs) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  line.setAttribute("width", "26");
  line.setAttribute("height", "8");
  line.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
  stroke.setAttribute("d", "M0 4H26");
  stroke.setAttribute("stroke-dasharray", DASHES[i % 6].join(" "));
  stroke.style.stroke = `var(--run${i % 6})`;
  stroke.style.strokeWidth = "3";
  line.append(stroke);
  const choice = runs.length > 1 ? make("input", {type: "radio", name: "run", value: i, checked: i === chosen}) : null;
  const name = make("span", {}, run.name), phase = make("span", {class: "phase"}), words = make("span", {class: "words"});
  const bar = make("progress", {max: 1, value: 0, "aria-label": "Steps made"}), figures = make("dl");
  const box = make(runs.length > 1 ? "label" : "div", {class: "run"}, make("div", {class: "name"}, choice, line, name),
    make("p", {}, phase, " ", words), bar, figures);
  if (choice) {
    choice.addEventListener("change", () => {
      chosen = i;
      show(true);
    });
  }
  return {box, phase, words, bar, figures, lines: []};
}

/** Pairs of a term and its text, kept in place. */
function figuresOf(run) {
  const {progress, marks, plan} = run, time = progress.step_time;
  const predicted = !known(time.predicted_ms) ? plan ? "none in the plan" : "not known yet" : milliseconds(time.predicted_ms) +
    (known(time.median_ms) ? ` (${signed(time.median_ms / time.predicted_ms - 1)})` : "");
  const rate = known(progress.tokens_per_second) ? `${digits(progress.tokens_per_second, 3)} tokens/s` : `${digits(progress.samples_per_second, 3)} samples/s`;
  const last = run.series.validation, n = last.step.length - 1;
  const terms = Object.entries(progress.terms || {}).slice(0, 4).map(([name, term]) => `${name} ${known(term) ? digits(term, 4) : "–"}`).join(", ");
  return [
    ["Step", progress.step + (known(progress.steps) ? ` of ${progress.steps}` : "")],
    ["Time left", known(progress.left_s) ? duration(progress.left_s) : progress.phase === "running" ? "not known yet" : "–"],
    ["Loss", progress.step > 0 ? (known(progress.loss) ? digits(progress.loss, 5) : "not finite") + (terms && ` (${terms})`) : "not known yet"],
    ["Validation", n >= 0 ? `${known(last.loss[n]) ? digits(last.loss[n], 5) : "–"}` + (known(last.accuracy[n]) ? `, ${percent(last.accuracy[n])} right` : "") : "none yet"],
    ["Step time", known(time.median_ms) ? `${milliseconds(time.median_ms)}, median of the last ${plural(time.measured_steps, "step")}` : "not known yet"],
    ["Predicted", predicted],
    ["8 of 10 steps", known(time.low_ms) ? `${milliseconds(time.low_ms)} to ${milliseconds(time.high_ms)}` : "not known yet"],
    ["99 of 100 steps", run.report && known(run.report.step_p99_ms) ? `under ${milliseconds(run.report.step_p99_ms)}` : "not known yet"],
    ["Throughput", progress.step > 0 ? rate : "not known yet"],
    ["Skipped steps", String(marks.skipped_steps)],
    ["Restarts", String(marks.restarts.length)],
    ["Plan", plan ? `${plan.schedule}, ${plural(plan.stages.length, "stage")}` : "not known yet"],
  ];
}

function showCard(at, run) {
  const [sign, kind] = PHASES[run.progress.phase] || ["", ""];
  at.phase.className = "phase " + kind;
  say(at.phase, `${sign} ${run.progress.phase}`);
  const quiet = run.progress.phase === "running" && run.progress.quiet_s > 30 ? `nothing written for ${duration(run.progress.quiet_s)}` : "";
  const reading = run.progress.all_read ? "" : `reading its history, ${percent(run.progress.read || 0)}`;
  say(at.words, [run.progress.words, quiet, reading].filter((text) => text).join("; "));
  if (known(run.progress.steps)) {
    at.bar.max = run.progress.steps;
    at.bar.value = run.progress.step;
    at.bar.hidden = false;
  } else {
    at.bar.hidden = true;
  }
  figuresOf(run).forEach(([term, text], i) => {
    if (!at.lines[i]) {
      at.lines[i] = make("dd");
      at.figures.append(make("dt", {}, term), at.lines[i]);
    }
    say(at.lines[i], text);
  });
}

function showPlan(place, run) {
  if (!run.plan) {
    fill(place, unknown("Not known yet."));
    return;
  }
  const {plan, report} = run;
  const rows = plan.stages.map((stage, i) => [`stage ${i}`, stage.last_layer - stage.first_layer === 1 ? `layer ${stage.first_layer}` : `layers ${stage.first_layer} to ${stage.last_layer - 1}`,
    stage.ranks.join(", "), milliseconds(stage.forward_ms), milliseconds(stage.backward_ms), bytes(stage.parameter_bytes), stage.recompute === "none" ? "" : stage.recompute]);
  const bubble = report ? make("p", {class: "note"}, `Bubble: ${percent(report.bubble)} measured, ${percent(report.bubble_predicted)} predicted, ${percent(report.bubble_bound)} with free transfers.`) : null;
  fill(place, make("p", {}, `${plan.model}, ${plan.dtype}: ${plan.schedule} with ${plural(plan.stages.length, "stage")}, ${plural(plan.micro_batches, "micro-batch", "micro-batches")} of ${plan.micro_batch_size} per step.`),
    bubble, ...run.notes.split("\n").filter((line) => line).map((line) => make("p", {class: "note"}, line)),
    table(["", "layers", "ranks", "forward", "backward", "parameters", "recomputed"], rows));
}

function showActions(place, run) {
  const actions = run.report ? run.report.actions : [];
  fill(place, actions.length === 0 ? unknown("Not known yet: a run writes its timeline when it ends or is stopped.")
    : make("details", {}, make("summary", {}, `${actions.length} kinds, by their single times`),
      table(["", "count", "p50", "p99", "predicted", "error"], actions.map((row) => [`stage ${row.stage}, ${row.kind}`, String(row.count), milliseconds(row.p50_ms), milliseconds(row.p99_ms),
        milliseconds(row.predicted_ms), row.predicted_ms > 0 ? signed(row.p50_ms / row.predicted_ms - 1) : ""]))));
}

function show(anew) {
  const {runs} = shown;
  if (cards.length !== runs.length) {
    cards.splice(0, cards.length, ...runs.map((run, i) => card(run, i, runs)));
    fill(part("runs"), ...cards.map((one) => one.box));
    part("runs").classList.toggle("one", runs.length === 1);
    document.title = runs.map((run) => shortName(run, runs)).join(", ") + " – Stagecraft";
  }
  runs.forEach((run, i) => {
    showCard(cards[i], run);
    cards[i].box.classList.toggle("chosen", runs.length > 1 && i === chosen);
  });
  const run = runs[chosen];
  fill(part("remarks"), ...runs.flatMap((one) => one.remarks).map((text) => make("li", {}, text)));
  for (const name of termsOf(runs)) {
    if (charts.some((chart) => chart.kind.term === name)) continue;
    const behind = charts.findIndex((chart) => chart.kind.key !== "loss" && (chart.kind.term === undefined || chart.kind.term > name));
    charts.splice(behind, 0, new Chart(termChart(name), part("charts"), charts[behind]));
  }
  for (const chart of charts) chart.show(runs, chosen);
  const {restarts, checkpoints, skipped_steps: skipped} = run.marks;
  say(part("marks"), `Marks${runs.length > 1 ? " of " + shortName(run, runs) : ""}: ` +
    `${restarts.length > 0 ? `restarts at ${restarts.slice(-5).map((step) => "step " + step).join(", ")} (dashed)` : "no restart"}, ` +
    `${checkpoints.length > 0 ? `${plural(checkpoints.length, "checkpoint")} (triangles; filled: still there), the newest of step ${checkpoints[checkpoints.length - 1][0]}` : "no checkpoint yet"}, ` +
    `${skipped > 0 ? `${plural(skipped, "skipped step")} (crosses)` : "no skipped step"}. Drag over a chart to zoom, double click to see all.`);
  // What follows from plan and timeline is drawn when these change.
  if (!anew && drawn.run === run.name && drawn.version === run.version) return;
  drawn.run = run.name;
  drawn.version = run.version;
  showShares(part("shares"), run, shown.styles);
  timeline.show(run, shown.styles);
  showMemory(part("memory"), run);
  showPlan(part("plan"), run);
  showActions(part("actions"), run);
}

/** The server leaves out what the page has by its version. */
function merge(newer) {
  newer.runs.forEach((run, i) => {
    const old = shown.runs[i];
    if (run.plan === undefined && old) {
      for (const key of ["plan", "report", "notes", "predicted", "measured"]) run[key] = old[key];
    }
  });
  shown = newer;
}

let answered = Date.now();
async function ask() {
  let wait = document.hidden ? ASK_HIDDEN : ASK_EVERY;
  try {
    const response = await fetch("data?have=" + shown.runs.map((run) => run.version).join(","), {cache: "no-store"});
    if (!response.ok) throw new Error(String(response.status));
    merge(await response.json());
    answered = Date.now();
    show(false);
    part("link").className = "";
    say(part("link"), "live");
    if (shown.runs.some((run) => !run.progress.all_read)) wait = 50;
  } catch {
    part("link").className = "lost";
    say(part("link"), `no answer for ${duration((Date.now() - answered) / 1000)}: this is what \`stagecraft watch\` said last`);
  }
  setTimeout(ask, wait);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) {
    chart.drop();
    chart.show(shown.runs, chosen);
  }
  show(true);
});

show(true);
if (shown.live) {
  say(part("link"), "live");
  setTimeout(ask, ASK_EVERY);
} else {
  say(part("link"), "as of " + new Date(shown.made * 1000).toLocaleString());
}
