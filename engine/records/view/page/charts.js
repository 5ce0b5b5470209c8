"use strict";
// Curves of all runs over their steps, by uPlot. By keyboard: arrows move the cursor, + and - zoom, 0 shows all.

const DASHES = [[], [8, 4], [2, 3], [10, 4, 2, 4], [5, 5], [1, 4]];
const runColor = (i) => css("--run" + (i % 6));

/** What a chart shows of a run: its line, perhaps its ends, perhaps points of validation. Behind the loss's there is one for each
 * term of it that a run has. */
const CHARTS = [
  {key: "loss", title: "Loss", line: "loss", low: "loss_low", high: "loss_high", points: true, log: true},
  {key: "ms", title: "Step time, ms", line: "ms", low: "ms_low", high: "ms_high", predicted: true},
  {key: "learning_rate", title: "Learning rate", line: "learning_rate"},
  {key: "gradient_norm", title: "Gradient norm", line: "gradient_norm", log: true},
];

const termChart = (name) => ({key: "term-" + name, title: name, term: name, points: true, log: true});

/** Terms of the loss that some run has. */
const termsOf = (runs) => [...new Set(runs.flatMap((run) => Object.keys(run.series.terms)))].sort();

class Chart {
  /** `before`: the chart that it stands before; null: at the end. */
  constructor(kind, place, before = null) {
    this.kind = kind;
    this.logarithmic = false;
    this.body = make("div", {tabindex: "0", role: "img"});
    this.toggle = kind.log ? make("button", {type: "button", "aria-pressed": "false"}, "log") : null;
    this.box = make("div", {class: "chart", id: "chart-" + kind.key},
      make("div", {class: "tools"}, make("h3", {}, kind.title), this.toggle), this.body);
    place.insertBefore(this.box, before && before.box);
    this.body.addEventListener("keydown", (event) => this.key(event));
    if (this.toggle) {
      this.toggle.addEventListener("click", () => {
        this.logarithmic = !this.logarithmic;
        this.toggle.setAttribute("aria-pressed", this.logarithmic);
        this.drop();
        this.show(this.runs, this.chosen);
      });
    }
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(this.body);
  }

  drop() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  size() {
    return {width: Math.max(200, this.body.clientWidth), height: window.innerWidth < 520 ? 190 : 240};
  }

  /** What a run has of it: {line, low, high, validation}; nothing where it has no such term. */
  curve(run) {
    const all = run.series, {line, low, high, points, term} = this.kind;
    if (term !== undefined) return all.terms[term];
    return {line: all[line], low: all[low] || [], high: all[high] || [], validation: points ? all.validation.loss : []};
  }

  /** Tables of [steps, line, low, high, ...] for uPlot.join, and the series that they are. */
  columns(runs) {
    const tables = [], series = [{label: "step"}], bands = [];
    const positive = (values) => (this.logarithmic ? values.map((value) => (value > 0 ? value : null)) : values);
    runs.forEach((run, i) => {
      const all = run.series, curve = this.curve(run), name = runs.length > 1 ? shortName(run, runs) : this.kind.title;
      const shown = {value: (_, value) => digits(value, 5), spanGaps: false};
      const line = {...shown, label: name, stroke: () => runColor(i), width: 1.6, dash: DASHES[i % 6],
        points: {show: all.step.length < 2}};
      if (!curve || !curve.line.some(known)) return;
      const columns = [all.step, positive(curve.line)];
      series.push(line);
      if (curve.low.length > 0) {
        const faint = {...shown, stroke: () => runColor(i), width: 0, points: {show: false}};
        columns.push(positive(curve.high), positive(curve.low));
        bands.push({series: [series.length, series.length + 1], fill: () => runColor(i) + "33"});
        series.push({...faint, label: name + ", highest"}, {...faint, label: name + ", lowest"});
      }
      if (this.kind.predicted && known(run.progress.step_time.predicted_ms)) {
        columns.push(all.step.map(() => run.progress.step_time.predicted_ms));
        series.push({...shown, label: runs.length > 1 ? name + ", predicted" : "Predicted",
          stroke: () => (runs.length > 1 ? runColor(i) : css("--text")), width: 1.2, dash: [6, 4], points: {show: false}});
      }
      tables.push(columns);
      if (curve.validation.some(known)) {
        tables.push([all.validation.step, positive(curve.validation)]);
        series.push({...shown, label: runs.length > 1 ? name + ", validation" : "Validation", stroke: () => runColor(i), width: 1,
          dash: [1, 3], points: {show: true, size: 9, width: 2, fill: () => css("--ground")}});
      }
    });
    return {tables, series, bands};
  }

  show(runs, chosen) {
    this.runs = runs;
    this.chosen = chosen;
    const {tables, series, bands} = this.columns(runs);
    if (tables.length === 0) {
      this.drop();
      fill(this.body, unknown(runs.some((run) => run.series.step.length > 0) ? "The run's lines have none." : "Not known yet."));
      this.body.removeAttribute("aria-label");
      return;
    }
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shape = JSON.stringify([this.logarithmic, series.map((one) => one.label), bands.length]);
    if (!this.plot || this.shape !== shape) {
      this.drop();
      this.shape = shape;
      fill(this.body);
      this.plot = new uPlot({...this.size(), series, bands, ...this.look()}, data, this.body);
    } else {
      const zoomed = this.zoomed;
      this.plot.setData(data, !zoomed);
      if (zoomed) this.plot.redraw();
    }
    if (!known(this.plot.cursor.idx)) this.plot.setLegend({idx: data[0].length - 1});
    const line = data[1].filter(known);
    this.body.setAttribute("aria-label", `${this.kind.title} over steps ${data[0][0]} to ${data[0][data[0].length - 1]}: ` +
      `from ${digits(line[0], 4)} to ${digits(line[line.length - 1], 4)}`);
  }

  look() {
    const axis = {stroke: () => css("--muted"), grid: {stroke: () => css("--grid"), width: 1},
      ticks: {stroke: () => css("--grid"), width: 1}, font: "12px system-ui, sans-serif"};
    return {
      scales: {x: {time: false}, y: {distr: this.logarithmic ? 3 : 1,
        range: this.logarithmic ? undefined : (plot, low, high) => this.range(plot, low, high)}},
      axes: [axis, {...axis, size: (_, texts) => 30 + 7.5 * Math.max(4, ...(texts || []).map((text) => text.length)), values: (_, ticks) => ticks.map((tick) => (known(tick) ? digits(tick, 4) : ""))}],
      cursor: {y: false},
      hooks: {draw: [(plot) => this.marks(plot)], setScale: [(plot, key) => key === "x" && this.scaled(plot)],
        setCursor: [(plot) => known(plot.cursor.idx) || plot.setLegend({idx: plot.data[0].length - 1})]},
    };
  }

  /** A few steps that took very long leave the others to be seen. */
  range(plot, low, high) {
    if (!known(low) || !known(high)) return [0, 1];
    if (this.kind.key === "ms") {
      const values = plot.data[1].filter(known).sort((a, b) => a - b);
      high = Math.min(high, 1.5 * Math.max(values[Math.floor(0.98 * (values.length - 1))],
        ...this.runs.map((run) => run.progress.step_time.predicted_ms || 0)));
      return [0, 1.08 * high];
    }
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  scaled(plot) {
    const steps = plot.data[0];
    this.zoomed = plot.scales.x.min > steps[0] || plot.scales.x.max < steps[steps.length - 1];
  }

  /** Restarts as dashed lines, checkpoints as triangles below, skipped steps as crosses above. */
  marks(plot) {
    const run = this.runs[this.chosen], {ctx, bbox} = plot, unit = devicePixelRatio;
    if (!run) return;
    ctx.save();
    ctx.beginPath();
    const beside = 6 * unit;  // a mark of the first or last step is whole
    ctx.rect(bbox.left - beside, bbox.top, bbox.width + 2 * beside, bbox.height);
    ctx.clip();
    const at = (step) => plot.valToPos(step, "x", true), bottom = bbox.top + bbox.height;
    ctx.lineWidth = 1.5 * unit;
    ctx.strokeStyle = css("--alarm");
    ctx.setLineDash([5 * unit, 4 * unit]);
    for (const step of run.marks.restarts) {
      ctx.beginPath();
      ctx.moveTo(at(step), bbox.top);
      ctx.lineTo(at(step), bottom);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    for (const [step] of run.series.skipped) {
      const x = at(step), y = bbox.top + 7 * unit, r = 4 * unit;
      ctx.beginPath();
      ctx.moveTo(x - r, y - r);
      ctx.lineTo(x + r, y + r);
      ctx.moveTo(x - r, y + r);
      ctx.lineTo(x + r, y - r);
      ctx.stroke();
    }
    ctx.fillStyle = ctx.strokeStyle = css("--muted");
    let before = -Infinity;
    for (const [step, kept] of run.marks.checkpoints) {
      const x = at(step), r = 5 * unit;
      if (!kept && x - before < 2.5 * r) continue;  // the kept ones are drawn however many there are
      before = x;
      ctx.beginPath();
      ctx.moveTo(x, bottom - 1.6 * r);
      ctx.lineTo(x + r, bottom);
      ctx.lineTo(x - r, bottom);
      ctx.closePath();
      if (kept) ctx.fill();
      else ctx.stroke();
    }
    ctx.restore();
  }

  key(event) {
    const plot = this.plot;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = plot.data[0], last = steps.length - 1;
    const index = known(plot.cursor.idx) ? plot.cursor.idx : last;
    const move = (to) => plot.setCursor({left: plot.valToPos(steps[Math.max(0, Math.min(last, to))], "x"), top: 10});
    const zoom = (factor) => {
      const {min, max} = plot.scales.x, middle = steps[index], span = (max - min) * factor;
      const from = Math.max(steps[0], middle - span / 2);
      plot.setScale("x", {min: from, max: Math.min(steps[last], from + span)});
    };
    const stride = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const keys = {ArrowLeft: () => move(index - stride), ArrowRight: () => move(index + stride), Home: () => move(0),
      End: () => move(last), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      0: () => plot.setScale("x", {min: steps[0], max: steps[last]})};
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

/** The part of a run's path that tells it from the others. */
function shortName(run, runs) {
  const parts = run.name.replace(/\/+$/, "").split("/");
  for (let n = 1; n < parts.length; ++n) {
    const end = parts.slice(-n).join("/");
    if (runs.filter((other) => other.name.replace(/\/+$/, "").endsWith("/" + end) || other.name === end).length === 1) return end;
  }
  return run.name;
}
