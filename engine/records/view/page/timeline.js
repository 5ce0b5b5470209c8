"use strict";
// The last steps action by action, or the plan's, on a canvas. Wheel, buttons or + and - zoom; dragging or arrows move;
// up and down choose a rank, comma and full stop an action of it; 0 shows all.

const [RANK, STYLE, STAGE, NUMBER, FROM, TO, BEGIN, LENGTH, BYTES] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

class TimelineView {
  constructor(place) {
    this.place = place;
    this.which = null;
    this.canvas = make("canvas", {tabindex: "0", role: "application", "aria-describedby": "pointed"});
    this.pointed = make("p", {class: "pointed", id: "pointed", role: "status"});
    this.buttons = {measured: make("button", {type: "button"}, "measured"), predicted: make("button", {type: "button"}, "as planned")};
    for (const [which, button] of Object.entries(this.buttons)) {
      button.addEventListener("click", () => {
        this.wanted = which;
        this.show(this.run, this.styles);
      });
    }
    const tool = (name, label, act) => {
      const button = make("button", {type: "button", "aria-label": label}, name);
      button.addEventListener("click", act);
      return button;
    };
    this.tools = make("div", {class: "tools"}, ...Object.values(this.buttons), tool("+", "Zoom in", () => this.zoom(0.6)),
      tool("−", "Zoom out", () => this.zoom(1 / 0.6)), tool("all", "Show all", () => this.reset()));
    this.title = make("p", {class: "note"});
    this.events();
    onResize(this.canvas, (ctx, width) => this.draw(ctx, width));
  }

  show(run, styles) {
    this.run = run;
    this.styles = styles;
    const there = ["measured", "predicted"].filter((which) => run[which].timeline);
    if (there.length === 0) {
      fill(this.place, unknown("Not known yet."));
      return;
    }
    const which = there.includes(this.wanted) ? this.wanted : there[0];
    for (const [name, button] of Object.entries(this.buttons)) {
      button.disabled = !there.includes(name);
      button.setAttribute("aria-pressed", name === which);
    }
    const timeline = run[which].timeline;
    if (this.timeline !== timeline) {
      this.timeline = timeline;
      this.which = which;
      this.prepare();
    }
    const steps = timeline.first_step === timeline.last_step ? `step ${timeline.last_step}` : `steps ${timeline.first_step} to ${timeline.last_step}`;
    say(this.title, (which === "measured" ? `Measured, ${steps}` : "One step as the plan's costs predict it") +
      (timeline.too_many ? "; only a part of its events: timeline.json has all of them, for ui.perfetto.dev" : "") +
      (!run.measured.timeline ? ". What is measured is not known yet: a run writes its timeline when it ends or is stopped." : ""));
    const used = new Set(timeline.events.map((event) => event[STYLE]));
    fill(this.place, this.tools, this.title, legend(used, styles), this.canvas, this.pointed);
    this.canvas.setAttribute("aria-label", `${this.title.textContent}: ${timeline.ranks.length} ranks, ${timeline.events.length} actions, ${milliseconds(timeline.length_ms)}. Arrows move, plus and minus zoom, comma and full stop choose an action.`);
    this.canvas.paint();
  }

  prepare() {
    const {ranks, events, length_ms: length} = this.timeline;
    this.rows = ranks.map(() => ({boxes: [], sent: [], stages: []}));
    for (const event of events) {
      const row = this.rows[event[RANK]], style = this.styles[event[STYLE]];
      (style.sent ? row.sent : row.boxes).push(event);
      if (event[STAGE] >= 0 && style.busy && !row.stages.includes(event[STAGE])) row.stages.push(event[STAGE]);
    }
    for (const row of this.rows) {
      row.boxes.sort((a, b) => a[BEGIN] - b[BEGIN]);
      row.stages.sort((a, b) => a - b);
    }
    this.length = Math.max(length, 1e-6);
    this.from = 0;
    this.span = this.length;
    this.row = 0;
    this.selected = -1;
    this.height = Math.max(16, Math.min(34, 640 / ranks.length));
    this.canvas.style.height = this.rows.length * (this.height + 10) + 26 + "px";
    say(this.pointed, "");
  }

  left() {
    return this.canvas.clientWidth < 520 ? 34 : 110;
  }

  x(ms) {
    return this.left() + ((ms - this.from) / this.span) * (this.canvas.clientWidth - this.left());
  }

  fillOf(ctx, event) {
    const style = this.styles[event[STYLE]], stages = this.rows[event[RANK]].stages;
    if (style.wait || stages.length < 2 || event[STAGE] < 0) return canvasFill(ctx, style);
    return mix(style.fill, style.deep, stages.indexOf(event[STAGE]) / (stages.length - 1));
  }

  draw(ctx, width) {
    if (!this.timeline) return;
    const left = this.left(), bottom = this.rows.length * (this.height + 10);
    ctx.font = "12px system-ui, sans-serif";
    this.axis(ctx, width, bottom);
    this.rows.forEach((row, rank) => {
      const top = rank * (this.height + 10);
      ctx.fillStyle = css("--text");
      ctx.textAlign = "right";
      ctx.fillText(left < 60 ? String(rank) : cutTo(ctx, this.timeline.ranks[rank], left - 10), left - 6, top + this.height / 2 + 4);
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, 0, width - left, bottom);
      ctx.clip();
      ctx.fillStyle = css("--idle");
      ctx.fillRect(left, top, width - left, this.height);
      for (const event of row.boxes) this.box(ctx, event, top, this.height, width);
      for (const event of row.sent) this.box(ctx, event, top + this.height + 1, 5, width);
      const chosen = rank === this.row && row.boxes[this.selected];
      if (chosen) {
        ctx.strokeStyle = css("--accent");
        ctx.lineWidth = 3;
        const from = this.x(chosen[BEGIN]);
        ctx.strokeRect(from, top + 1, Math.max(2, this.x(chosen[BEGIN] + chosen[LENGTH]) - from), this.height - 2);
      }
      ctx.restore();
    });
  }

  box(ctx, event, top, height, width) {
    const from = Math.max(this.x(event[BEGIN]), this.left() - 1), to = Math.min(this.x(event[BEGIN] + event[LENGTH]), width + 1);
    if (to <= this.left() || from >= width) return;
    const wide = to - from, style = this.styles[event[STYLE]];
    ctx.fillStyle = this.fillOf(ctx, event);
    ctx.fillRect(from, top, Math.max(wide - (wide > 4 ? 0.8 : 0), 0.7), height);
    if (height < 12 || wide < 14 || style.wait) return;
    const label = style.letter + (event[NUMBER] >= 0 ? event[NUMBER] : "");
    ctx.fillStyle = style.ink;
    ctx.textAlign = "center";
    if (ctx.measureText(label).width < wide - 4) ctx.fillText(label, from + wide / 2, top + height / 2 + 4);
  }

  axis(ctx, width, bottom) {
    const left = this.left(), most = Math.max(2, (width - left) / 90);
    let unit = 10 ** Math.floor(Math.log10(this.span / most));
    while (this.span / unit > most) unit *= this.span / unit / most > 2 ? 5 : 2;
    ctx.fillStyle = css("--muted");
    ctx.strokeStyle = css("--grid");
    ctx.textAlign = "center";
    for (let tick = Math.ceil(this.from / unit) * unit; tick <= this.from + this.span; tick += unit) {
      const x = this.x(tick);
      ctx.beginPath();
      ctx.moveTo(x, 0);
      ctx.lineTo(x, bottom);
      ctx.stroke();
      const text = digits(Math.round(tick / unit) * unit, 6) + " ms", half = ctx.measureText(text).width / 2;
      ctx.fillText(text, Math.min(Math.max(x, half + 1), width - half - 1), bottom + 16);
    }
  }

  words(event) {
    const style = this.styles[event[STYLE]], number = event[NUMBER];
    const what = event[FROM] >= 0 ? `${style.label} ${number}, stage ${event[FROM]} to ${event[TO]}`
      : style.label + (number >= 0 ? ` ${number}` : "") + (event[STAGE] >= 0 ? `, stage ${event[STAGE]}` : "");
    const size = event[BYTES] ? `, ${bytes(event[BYTES])}` : "";
    return `${this.timeline.ranks[event[RANK]]}: ${what}${size}: ${milliseconds(event[LENGTH])}, at ${milliseconds(event[BEGIN])}`;
  }

  at(x, y) {
    const rank = Math.floor(y / (this.height + 10)), row = this.rows[rank];
    if (!row || x < this.left()) return null;
    const ms = this.from + ((x - this.left()) / (this.canvas.clientWidth - this.left())) * this.span;
    const under = y - rank * (this.height + 10) > this.height ? row.sent : row.boxes;
    return under.findLast((event) => event[BEGIN] <= ms && ms <= event[BEGIN] + event[LENGTH]) || null;
  }

  zoom(factor, around = 0.5) {
    const span = Math.min(this.length, Math.max(this.length / 5000, this.span * factor));
    this.move(this.from + (this.span - span) * around, span);
  }

  move(from, span = this.span) {
    this.span = span;
    this.from = Math.max(0, Math.min(this.length - span, from));
    this.canvas.paint();
  }

  reset() {
    this.move(0, this.length);
  }

  choose(row, index) {
    this.row = Math.max(0, Math.min(this.rows.length - 1, row));
    const boxes = this.rows[this.row].boxes;
    this.selected = Math.max(0, Math.min(boxes.length - 1, index));
    const event = boxes[this.selected];
    if (!event) return;
    if (event[BEGIN] < this.from || event[BEGIN] > this.from + this.span) this.from = Math.max(0, event[BEGIN] - this.span / 4);
    say(this.pointed, this.words(event));
    this.move(this.from);
  }

  events() {
    const canvas = this.canvas;
    let dragged = null;
    const fraction = (event) => (event.offsetX - this.left()) / (canvas.clientWidth - this.left());
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;  // the page's own scrolling
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, fraction(event)));
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      dragged = {x: event.offsetX, from: this.from};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged && this.span < this.length) {
        this.move(dragged.from - ((event.offsetX - dragged.x) / (canvas.clientWidth - this.left())) * this.span);
        return;
      }
      const found = this.timeline && this.at(event.offsetX, event.offsetY);
      say(this.pointed, found ? this.words(found) : "");
    });
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {ArrowLeft: () => this.move(this.from - this.span / 8), ArrowRight: () => this.move(this.from + this.span / 8),
        ArrowUp: () => this.choose(this.row - 1, this.selected), ArrowDown: () => this.choose(this.row + 1, this.selected),
        ",": () => this.choose(this.row, this.selected - 1), ".": () => this.choose(this.row, this.selected + 1),
        "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.reset()};
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}

function mix(from, to, part) {
  const channel = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(channel(from, i) + (channel(to, i) - channel(from, i)) * part)).join(",")})`;
}

function cutTo(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  while (text.length > 1 && ctx.measureText(text + "…").width > width) text = text.slice(0, -1);
  return text + "…";
}
