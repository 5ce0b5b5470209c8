"use strict";
// Where ranks' time goes, and their memory, as bars. Colours and letters are those of every picture (data.styles).

/** The background of a style: waits are hatched, so that they are told from work without colour. */
function background(style) {
  return style.wait ? `repeating-linear-gradient(45deg, var(--wait) 0 4px, ${style.deep} 4px 6px)` : style.fill;
}

function swatch(style) {
  const box = make("span", {class: "swatch", "aria-hidden": "true"}, style.letter === "." ? "" : style.letter);
  box.style.background = background(style);
  box.style.color = style.ink;
  return box;
}

const IDLE = {label: "idle", letter: "", idle: true};

/** Mean milliseconds per rank and style over the steps of `shares`; idle last. */
function meanShares(shares) {
  const steps = shares.ms.length;
  return shares.ms[0].map((_, rank) => shares.ms[0][rank].map((__, style) =>
    shares.ms.reduce((sum, step) => sum + (step[rank] ? step[rank][style] : 0), 0) / steps));
}

function bar(parts, styles, thin) {
  const total = parts.reduce((sum, part) => sum + part, 0) || 1;
  const box = make("div", {class: thin ? "bar thin" : "bar", role: "img", "aria-label": parts.map((part, i) =>
    [part, (styles[i] || IDLE).label]).filter(([part]) => part / total >= 0.005).map(([part, label]) => `${label} ${percent(part / total)}`).join(", ")});
  parts.forEach((part, i) => {
    if (part / total < 0.001) return;
    const style = styles[i] || IDLE;
    const piece = make("i", {title: `${style.label}: ${milliseconds(part)}, ${percent(part / total)}`});
    piece.style.flex = `${part / total} 1 0`;
    if (!style.idle) piece.style.background = background(style);
    if (!style.idle && !style.wait) piece.style.color = style.ink;
    if (!thin && part / total > 0.07) {
      piece.append(make("span", {}, `${style.letter === "." ? "" : style.letter} ${(100 * part / total).toFixed(0)} %`));
    }
    box.append(piece);
  });
  return box;
}

function legend(used, styles) {
  const items = styles.filter((_, i) => used.has(i)).map((style) => make("li", {}, swatch(style), style.label));
  const idle = make("span", {class: "swatch"});
  idle.style.background = css("--idle");
  return make("ul", {class: "legend"}, ...items, make("li", {}, idle, "idle"));
}

/** Bars per rank: measured, and below it, thin, what was predicted. */
function showShares(place, run, styles) {
  const measured = run.measured.shares, predicted = run.predicted.shares;
  if (!measured && !predicted) {
    fill(place, unknown(known(run.plan) ? "Not known: the plan has no costs, and no timeline was kept." : "Not known yet."));
    return;
  }
  const now = measured && meanShares(measured), planned = predicted && meanShares(predicted);
  const used = new Set();
  const rows = make("div", {class: "ranks", tabindex: "0", role: "group", "aria-label": "Shares of each rank's time"});
  (now || planned).forEach((_, rank) => {
    const name = ((run.measured.timeline || run.predicted.timeline || {ranks: []}).ranks[rank]) || "rank " + rank;
    for (const [parts, thin] of [[now && now[rank], false], [planned && planned[rank], true]]) {
      if (!parts) continue;
      parts.forEach((part, i) => part > 0 && i < styles.length && used.add(i));
      rows.append(make("div", {class: thin ? "which" : "who"}, thin ? (now ? "predicted" : name + ", predicted") : name), bar(parts, styles, thin && !!now));
    }
  });
  const mean = make("div", {}, make("h3", {}, measured ? (measured.steps.length === 1 ? "The last step" : `Mean of the last ${measured.steps.length} steps`) : "As predicted"), rows);
  const over = make("div", {}, make("h3", {}, "Step by step"));
  if (!measured) {
    over.append(unknown("Not known yet: a run writes its timeline when it ends or is stopped."));
  } else {
    over.append(overTime(measured, styles));
  }
  const long = run.measured.over_time;
  if (long && long.steps.length > 1) over.append(make("h3", {}, "Over the run"), overTime(long, styles));
  fill(place, legend(used, styles), make("div", {class: "two"}, mean, over), stageTable(run));
}

/** Columns of shares, a row per rank, a column per step. */
function overTime(shares, styles) {
  const ranks = shares.ms[0].length, height = Math.max(18, Math.min(60, 480 / ranks)), gap = 4;
  const canvas = make("canvas", {role: "img", "aria-label": `Shares of each step, steps ${shares.steps[0]} to ${shares.steps[shares.steps.length - 1]}, a row per rank`});
  canvas.style.height = ranks * (height + gap) + 18 + "px";
  onResize(canvas, (ctx, width) => {
    const left = 34, each = (width - left) / shares.steps.length;
    ctx.font = "11px system-ui, sans-serif";
    for (let rank = 0; rank < ranks; ++rank) {
      const top = rank * (height + gap);
      ctx.fillStyle = css("--muted");
      ctx.textAlign = "right";
      ctx.fillText(String(rank), left - 6, top + height / 2 + 4);
      shares.ms.forEach((step, i) => {
        let y = top + height;
        const x = left + i * each, total = shares.window_ms[i] || 1;
        ctx.fillStyle = css("--idle");
        ctx.fillRect(x, top, Math.max(each - 1, 0.6), height);
        (step[rank] || []).forEach((part, style) => {
          if (part <= 0 || !styles[style]) return;
          const h = (part / total) * height;
          y -= h;
          ctx.fillStyle = canvasFill(ctx, styles[style]);
          ctx.fillRect(x, y, Math.max(each - 1, 0.6), h);
        });
      });
    }
    ctx.fillStyle = css("--muted");
    ctx.textAlign = "left";
    ctx.fillText("step " + shares.steps[0], left, ranks * (height + gap) + 12);
    ctx.textAlign = "right";
    ctx.fillText(String(shares.steps[shares.steps.length - 1]), width, ranks * (height + gap) + 12);
  });
  return canvas;
}

/** A canvas that draws itself anew whenever its width or the theme changes. */
function onResize(canvas, draw) {
  const paint = () => {
    const unit = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
    if (width === 0) return;
    canvas.width = Math.round(width * unit);
    canvas.height = Math.round(height * unit);
    const ctx = canvas.getContext("2d");
    ctx.scale(unit, unit);
    draw(ctx, width, height);
  };
  canvas.paint = paint;
  new ResizeObserver(paint).observe(canvas);
}

const hatches = new Map();
/** A style's fill on a canvas: waits are hatched. */
function canvasFill(ctx, style) {
  if (!style.wait) return style.fill;
  const key = style.deep + css("--wait");
  if (!hatches.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.fillStyle = css("--wait");
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = style.deep;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const x of [-8, 0, 8]) {
      pen.moveTo(x - 1, 9);
      pen.lineTo(x + 9, -1);
    }
    pen.stroke();
    hatches.set(key, ctx.createPattern(tile, "repeat"));
  }
  return hatches.get(key);
}

const overPredicted = (figure) => (known(figure.measured_ms) ? milliseconds(figure.measured_ms) : "–") +
  (known(figure.predicted_ms) ? ` (${milliseconds(figure.predicted_ms)})` : "");

function stageTable(run) {
  if (!run.report) return null;
  const rows = run.report.stage_times.map((row) => [`stage ${row.stage}, rank ${row.rank}`, overPredicted(row.forward), overPredicted(row.backward),
    overPredicted(row.optimizer), overPredicted(row.send), overPredicted(row.wait_activation), overPredicted(row.wait_gradient),
    milliseconds(row.wait_loss_ms), milliseconds(row.collective_ms), milliseconds(row.other_ms), overPredicted(row.idle)]);
  return make("details", {}, make("summary", {}, "As numbers: per step, predicted in brackets"),
    table(["", "forward", "backward", "optimizer", "send", "wait activation", "wait gradient", "wait loss", "collective", "other", "idle"], rows));
}

/** Measured peaks inside what was proved to be enough. */
function showMemory(place, run) {
  const rows = run.report ? run.report.memory : [];
  if (rows.length === 0) {
    fill(place, unknown("Not known yet."));
    return;
  }
  const top = Math.max(...rows.map((row) => Math.max(row.proved_bytes || 0, row.measured_bytes || 0))) || 1;
  const ranks = make("div", {class: "ranks", tabindex: "0", role: "group", "aria-label": "Memory of each rank"});
  for (const row of rows) {
    const proved = row.proved_bytes || 0, measured = row.measured_bytes;
    const text = known(measured) ? `${bytes(measured)} of ${proved > 0 ? bytes(proved) : "–"} proved` + (proved > 0 ? `, ${percent(measured / proved)}` : "")
      : `${bytes(proved)} proved, measured: not known yet`;
    const card = row.card ? `; card: ${bytes(row.card.used_bytes)} used of ${bytes(row.card.total_bytes)}` : "";
    const held = make("div", {class: "held"});
    held.style.width = percent(Math.max(proved, measured || 0) / top).replace(" ", "");
    if (known(measured)) {
      const part = make("i");
      part.style.width = percent(measured / Math.max(proved, measured, 1)).replace(" ", "");
      held.append(part);
    }
    ranks.append(make("div", {class: "who"}, "rank " + row.rank), make("div", {}, held, make("small", {}, text + card)));
  }
  fill(place, make("p", {class: "note"}, "Peak of requested tensor bytes; the frame is what the checker proved to be enough."), ranks);
}
