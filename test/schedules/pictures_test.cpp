// Pictures: SVG and text of simulated programs, and the memory curve over time.

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/pictures/axis.h"
#include "schedules/pictures/front.h"
#include "schedules/pictures/shares.h"
#include "schedules/pictures/svg.h"
#include "schedules/pictures/text.h"
#include "schedules/program/program_text.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/program_grid.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

/// Every tag is closed in order and nothing is left of '<' or '&' outside tags and entities: enough to know
/// that a browser takes it.
bool well_formed_xml(const std::string& text) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      const std::string entity = text.substr(at, end - at + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") return false;
      at = end + 1;
    } else if (text[at] == '<') {
      const std::size_t end = text.find('>', at);
      if (end == std::string::npos) return false;
      const std::string inside = text.substr(at + 1, end - at - 1);
      const std::string name =
          inside.substr(inside[0] == '/' ? 1 : 0, inside.find_first_of(" /", 1) - (inside[0] == '/' ? 1 : 0));
      if (inside.find('<') != std::string::npos) return false;
      if (inside[0] == '/') {
        if (open.empty() || open.back() != inside.substr(1)) return false;
        open.pop_back();
      } else if (inside.back() != '/') {
        open.push_back(name);
      }
      at = end + 1;
    } else {
      ++at;
    }
  }
  return open.empty();
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Times and bytes of no round numbers, so that nothing falls together by chance.
CostTable costs_for(int stages, int ranks) {
  CostTable costs = unit_costs(stages, ranks);
  for (int s = 0; s < stages; ++s) {
    StageCosts& c = costs.stages[static_cast<std::size_t>(s)];
    c.forward = c.forward * (1 + 0.013 * s);
    c.step = Seconds{0.3e-3};
    c.parameters = Bytes{100'000 + s};
    c.input = c.output = Bytes{30'000};
    c.kept_for_input = Bytes{50'000};
    c.kept_for_weight = Bytes{20'000};
    c.forward_peak = c.backward_peak = Bytes{61'000 + 7 * s};
  }
  costs.network.levels.front().link = {Seconds{0.05e-3}, 1e9};
  return costs;
}

Panel panel_of(const LoweredProgram& program, const CostTable& costs) {
  Panel panel;
  (void)simulate(program, costs, &panel.timeline);
  panel.timeline.title = program.schedule;
  panel.memory = memory_curves(program, costs, panel.timeline);
  return panel;
}

Panel panel_of(const char* schedule, const Placement& placement, int micro_batches) {
  const LoweredProgram program = lower(find_schedule(schedule).generate({placement, {micro_batches}}));
  return panel_of(program, costs_for(placement.stages(), placement.world()));
}

Panel plain_panel(const char* schedule, int stages, int micro_batches) {
  const LoweredProgram program =
      lower(find_schedule(schedule).generate({Placement::straight(stages), {micro_batches}}));
  return Panel{[&] {
    Timeline timeline;
    (void)simulate(program, unit_costs(stages, stages), &timeline);
    return timeline;
  }()};
}

Event event_of(int rank, Op op, int micro_batch, double begin, double end) {
  Event event;
  event.rank = Rank{rank};
  event.action.op = op;
  event.action.stage = StageId{rank};
  event.action.micro_batch = MicroBatch{micro_batch};
  event.begin = Seconds{begin};
  event.end = Seconds{end};
  return event;
}

}  // namespace

TEST_CASE("a memory curve's highest point is the proved peak, and it keeps the simulation's time",
          "[pictures]") {
  auto placements = test::straight_placements();
  for (auto& odd : test::odd_placements()) placements.push_back(std::move(odd));
  int programs = 0;
  for (const auto& entry : test::program_grid(placements)) {
    const CostTable costs = costs_for(entry.program.placement.stages(), entry.program.placement.world());
    const Proof proof = check(entry.program, &costs);
    INFO(entry.name);
    REQUIRE(proof.accepted());
    Timeline timeline;
    const Simulation simulation = simulate(entry.program, costs, &timeline);
    const std::vector<MemoryCurve> curves = memory_curves(entry.program, costs, timeline);
    REQUIRE(curves.size() == proof.memory.size());
    for (std::size_t r = 0; r < curves.size(); ++r) {
      CHECK(curves[r].peak() == proof.memory[r].peak);
      REQUIRE_FALSE(curves[r].points.empty());
      CHECK(curves[r].points.front() == MemoryCurve::Point{Seconds{0}, curves[r].fixed});
      CHECK(std::is_sorted(curves[r].points.begin(), curves[r].points.end(),
                           [](const auto& a, const auto& b) { return a.at < b.at; }));
      CHECK(curves[r].points.back().at <= simulation.makespan);
      CHECK(curves[r].points.back().held == curves[r].fixed);  // what came has gone
    }
    ++programs;
  }
  CHECK(programs > 100);
}

TEST_CASE("the curve rises when a forward ends, and falls when its backward has", "[pictures]") {
  CostTable costs = unit_costs(1, 1);
  costs.stages[0].kept_for_input = Bytes{100};
  costs.stages[0].backward_peak = Bytes{7};
  const LoweredProgram program = lower(find_schedule("fill_drain").generate({Placement::straight(1), {2}}));
  const MemoryCurve curve = panel_of(program, costs).memory.at(0);
  const auto ms = [](double value) { return Seconds{value * 1e-3}; };
  // F0 F1 take 1 ms each, B0 and B1 two.
  const std::vector<MemoryCurve::Point> expected{
      {ms(0), Bytes{0}},   {ms(1), Bytes{100}}, {ms(2), Bytes{200}}, {ms(2), Bytes{207}},
      {ms(4), Bytes{100}}, {ms(4), Bytes{107}}, {ms(6), Bytes{0}}};
  REQUIRE(curve.points.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(curve.points[i].at.value == Approx(expected[i].at.value));
    CHECK(curve.points[i].held == expected[i].held);
  }
  CHECK(curve.peak() == Bytes{207});
  CHECK(curve.peak_at().value == Approx(2e-3));
}

TEST_CASE("an SVG picture is well-formed and shows every rank, box, unit and figure", "[pictures]") {
  Panel panel = panel_of("1f1b", Placement::straight(4), 8);
  panel.timeline.title = "2 stages <& more> \"quoted\"";
  panel.figures = {"makespan 1 ms", "bubble 2 %"};
  Bytes peak;
  for (const MemoryCurve& curve : panel.memory) peak = std::max(peak, curve.peak());
  panel.capacity = peak + Bytes{1000};
  const std::string svg = to_svg({panel});
  CHECK(well_formed_xml(svg));
  CHECK(says(svg, ">2 stages &lt;&amp; more&gt; &quot;quoted&quot;</text>"));
  CHECK(says(svg, ">makespan 1 ms  ·  bubble 2 %</text>"));
  for (int r = 0; r < 4; ++r) CHECK(count(svg, fmt::format(">rank {0}: stage {0}</text>", r)) == 1);
  const auto drawn = std::count_if(panel.timeline.events.begin(), panel.timeline.events.end(),
                                   [](const Event& event) { return event.end > event.begin; });
  CHECK(count(svg, "<title>") == drawn + 4);  // every box, every memory strip
  CHECK(count(svg, ">3</text>") == 8);        // a forward and a backward on each rank
  CHECK(says(svg, " ms</text>"));
  CHECK(says(svg, "% busy</text>"));
  for (const char* label : {"forward", "backward", "optimizer step", "wait for activation",
                            "wait for gradient", "activation sent", "gradient sent", "loss sent", "idle",
                            "memory held all the time", "for a while", "peak"}) {
    INFO(label);
    CHECK(count(svg, fmt::format(">{}</text>", label)) == 1);
  }
  CHECK(says(svg, ">capacity "));
  CHECK_FALSE(says(svg, ">recompute</text>"));  // the legend holds what occurs
  panel.capacity = peak * 100;                  // would press the curves flat
  CHECK_FALSE(says(to_svg({panel}), ">capacity "));
}

TEST_CASE("a rank's stages have shades of their own", "[pictures]") {
  const std::string svg = to_svg({panel_of("1f1b", test::placement({{0}, {1}, {0}, {1}, {0}, {1}}), 4)});
  CHECK(well_formed_xml(svg));
  CHECK(says(svg, "forward, a shade per stage"));
  const std::string first = pictures::shade(pictures::style_of(pictures::EventStyle::forward), 0, 3);
  const std::string last = pictures::shade(pictures::style_of(pictures::EventStyle::forward), 2, 3);
  CHECK(first == pictures::style_of(pictures::EventStyle::forward).fill);
  CHECK(last == pictures::style_of(pictures::EventStyle::forward).deep);
  CHECK(says(svg, "<g fill=\"" + first));
  CHECK(says(svg, "<g fill=\"" + last));
  CHECK(says(svg, "<title>4F3: "));
}

TEST_CASE("a picture tells what goes past stages, to whom, and who sums a tied weight", "[pictures]") {
  const Placement four = Placement::straight(4);
  CostTable costs = costs_for(4, 4);
  costs.skips = {{StageId{0}, StageId{2}, Bytes{40'000}}};
  costs.ties = {Bytes{90'000}};
  ScheduleRequest request{four, {3}};
  request.skips = {{StageId{0}, StageId{2}}};
  request.ties = {{StageId{0}, StageId{3}}};
  const Panel panel = panel_of(lower(find_schedule("1f1b").generate(request)), costs);
  const std::string svg = to_svg({panel});
  CHECK(well_formed_xml(svg));
  CHECK(says(svg, ">sent past stages</text>"));
  CHECK(says(svg, ">tied weights summed</text>"));
  CHECK(says(svg, "<title>activation 2 to stage 2: "));
  CHECK(says(svg, "<title>tie 0: "));
  // A line per activation and gradient that passes stage 1, and one from the first rank to the last.
  const auto lines_in = [&](pictures::EventStyle style) {
    const std::string begin =
        fmt::format("<path fill=\"none\" stroke=\"{}\"", pictures::style_of(style).fill);
    const std::size_t at = svg.find(begin);
    REQUIRE(at != std::string::npos);
    return count(svg.substr(at, svg.find("/>", at) - at), "L");
  };
  CHECK(lines_in(pictures::EventStyle::sent_skip) == 6);
  CHECK(lines_in(pictures::EventStyle::tie) == 1);
  CHECK(says(to_text(panel, {.columns = 100}), "T tied weights summed"));
  const std::string without = to_svg({panel_of("1f1b", four, 3)});
  CHECK_FALSE(says(without, "past stages"));
  CHECK_FALSE(says(without, "tied"));
}

TEST_CASE("a picture of nothing, of an instant and of unnamed ranks", "[pictures]") {
  CHECK(well_formed_xml(to_svg(Timeline{})));
  CHECK(to_text(Panel{}, {}).empty());
  Timeline timeline;
  timeline.events = {event_of(2, Op::forward, 0, 1, 1)};
  const std::string instant = to_svg(timeline);
  CHECK(well_formed_xml(instant));
  CHECK_FALSE(says(instant, "nan"));
  CHECK_FALSE(says(instant, "inf"));
  CHECK(count(instant, "rank 2</text>") == 1);
  timeline.events = {event_of(0, Op::forward, 0, 0, 0)};
  CHECK(lines_of(to_text(Panel{timeline}, {})).size() >= 3);
  CHECK_FALSE(says(to_svg(timeline), "nan"));
  timeline.events = {event_of(0, Op::forward, 0, 100, 4000)};
  CHECK(says(to_svg(timeline), " s</text>"));
}

TEST_CASE("pictures of many ranks and of long programs stay small and say what they leave out",
          "[pictures]") {
  const std::string wide = to_svg({panel_of("1f1b", Placement::straight(64), 128)});
  CHECK(well_formed_xml(wide));
  CHECK(count(wide, ": stage ") >= 64);
  CHECK(wide.size() < 3'000'000);
  const std::string longer = to_svg({panel_of("1f1b", Placement::straight(8), 4096)});
  CHECK(well_formed_xml(longer));
  CHECK(longer.size() < 1'000'000);
  CHECK(says(longer, "% busy</text>"));
  CHECK(says(longer, "backward 6"));  // a stretch's tooltip: backwards are two thirds of the steady part
  const std::string most = to_svg({panel_of("fill_drain", Placement::straight(200), 2)});
  CHECK(says(most, "128 of 200 ranks drawn"));
  CHECK(says(most, ">rank 0: stage 0</text>"));
  CHECK(says(most, ">rank 199: stage 199</text>"));
}

TEST_CASE("a picture of time against memory has the front, its labels and what is near it", "[pictures]") {
  const auto point = [](double ms, std::int64_t mib, const char* label, bool on_front) {
    return FrontPoint{Seconds{ms / 1e3}, Bytes{mib << 20}, label, on_front};
  };
  std::vector<FrontPoint> points{point(100, 80, "fast & big", true), point(120, 40, "between", true),
                                 point(160, 20, "small", true), point(130, 60, "beaten", false),
                                 point(9000, 60, "far off", false)};
  const std::string svg = front_svg("plans", points, Bytes{90 << 20});
  CHECK(well_formed_xml(svg));
  CHECK(count(svg, "r=\"4.5\"") == 3);
  CHECK(count(svg, "r=\"3\"") == 1);  // the one far off is not drawn, and said so
  CHECK(says(svg, "1 plans are worse than the picture shows"));
  CHECK(says(svg, ">fast &amp; big<"));
  CHECK(says(svg, "<title>beaten: 130.00 ms, 60.0 MiB</title>"));
  CHECK(says(svg, "a device has 90.0 MiB"));
  CHECK_FALSE(says(front_svg("plans", points, Bytes{std::int64_t{1} << 40}), "a device has"));
  CHECK(well_formed_xml(front_svg("one", {point(5, 1, "one", true)})));
  CHECK(well_formed_xml(front_svg("nothing", {point(0, 0, "nothing", true)})));
}

TEST_CASE("ticks far from zero are few and in the picture", "[pictures]") {
  // A closer look at a plan of 1e12 ms: a double there tells moments apart that are 0.1 us from each other.
  for (const double span : {1e-6, 1e-3, 1.0}) {
    for (const double begin : {0.0, 1.0, 1e6, 1e9}) {
      const pictures::Axis axis = pictures::axis_of(begin, begin + span, 10);
      INFO("from " << begin << " for " << span);
      REQUIRE(axis.ticks.size() <= 12);
      for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
        CHECK(axis.ticks[i].value >= begin - span / 10);
        CHECK(axis.ticks[i].value <= begin + span * 1.1);
        if (i > 0) CHECK(axis.labels[i] != axis.labels[i - 1]);
      }
    }
  }
  CHECK(pictures::axis_of(1e9, 1e9 + 1e-3, 10).ticks.size() >= 4);
}

TEST_CASE("several panels share one axis", "[pictures]") {
  const Panel shorter = panel_of("1f1b", Placement::straight(2), 4);
  Panel longer = panel_of("fill_drain", Placement::straight(2), 12);
  const std::string svg = to_svg({shorter, longer});
  CHECK(well_formed_xml(svg));
  CHECK(count(svg, ">1f1b</text>") == 1);
  CHECK(count(svg, ">fill_drain</text>") == 1);
  CHECK(count(svg, ">rank 0: stage 0</text>") == 2);
  CHECK(count(svg, ">0 ms</text>") == 1);
  CHECK(count(svg, ">forward</text>") == 1);
}

TEST_CASE("columns' shares add up to the time they stand for", "[pictures]") {
  const Panel panel = panel_of("1f1b", Placement::straight(3), 5);
  const pictures::PanelLayout rows = pictures::rows_of(panel, 10);
  for (const std::size_t columns : {1U, 7U, 400U}) {
    for (const pictures::Row& row : rows.rows) {
      double busy = 0;
      for (const auto& shares : pictures::shares_of(row, rows.begin.value, rows.end.value, columns)) {
        double all = 0;
        for (std::size_t i = 0; i < pictures::kLooks; ++i) {
          all += static_cast<double>(shares.at(i));
          if (is_busy(pictures::EventStyle{static_cast<std::uint8_t>(i)}))
            busy += static_cast<double>(shares.at(i));
        }
        CHECK(all <= 1 + 1e-5);
      }
      const double seconds = busy * (rows.end - rows.begin).value / static_cast<double>(columns);
      CHECK(seconds == Approx(row.busy.value).epsilon(1e-4));
    }
  }
  CHECK(pictures::spread(5, 10) == std::vector<std::size_t>{0, 1, 2, 3, 4});
  CHECK(pictures::spread(100, 3) == std::vector<std::size_t>{0, 49, 99});
  CHECK(pictures::spread(100, 1) == std::vector<std::size_t>{0});
}

TEST_CASE("1F1B as text", "[pictures]") {
  // 33 ms on 66 columns: a forward takes 2, a backward 4.
  const std::string text = to_text(plain_panel("1f1b", 4, 8), {.columns = 74});
  CHECK(text ==
        "rank 0|F0F1F2F3............B0==F4B1==F5B2==F6B3==F7B4==..B5==..B6==..B7==|\n"
        "rank 1|..F0F1F2........B0==F3B1==F4B2==F5B3==F6B4==F7B5==..B6==..B7==    |\n"
        "rank 2|....F0F1....B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==..B7==        |\n"
        "rank 3|......F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==            |\n"
        "       '         '         '         '         '         '         '\n"
        "       0 ms      5         10        15        20        25        30\n"
        "F forward  B backward  . wait\n");
}

TEST_CASE("a micro-batch's number is whole or not there", "[pictures]") {
  const std::string text = to_text(plain_panel("1f1b", 1, 12), {.columns = 80});
  CHECK(says(text, "F8B8==F9B9==F-B10=F-B11=|"));
}

TEST_CASE("a part of a picture keeps its times, and what is held when it begins", "[pictures]") {
  Panel panel = panel_of("1f1b", Placement::straight(3), 6);
  const Panel whole = panel;
  const Seconds from{4.1e-3};
  const Seconds until{9.3e-3};
  cut(panel, from, until);
  REQUIRE_FALSE(panel.timeline.events.empty());
  CHECK(panel.timeline.events.size() < whole.timeline.events.size());
  for (const Event& event : panel.timeline.events) {
    CHECK(event.begin >= from);
    CHECK(event.end <= until);
    CHECK(event.begin < event.end);
  }
  for (std::size_t r = 0; r < 3; ++r) {
    Bytes before = whole.memory[r].fixed;
    for (const auto& point : whole.memory[r].points) {
      if (point.at < from) before = point.held;
    }
    CHECK(panel.memory[r].points.front() == MemoryCurve::Point{from, before});
    CHECK(panel.memory[r].points.back().at <= until);
    CHECK(before > whole.memory[r].fixed);
  }
  const pictures::PanelLayout rows = pictures::rows_of(panel, 10);
  CHECK(rows.begin == from);
  CHECK(rows.end == until);
  const std::string svg = to_svg({panel});
  CHECK(well_formed_xml(svg));
  CHECK(says(svg, " at 4.10 ms</title>"));  // tooltips tell the time of the whole
}

TEST_CASE("text in colour shows numbers, and its width is the same", "[pictures]") {
  const std::string text = to_text(plain_panel("1f1b", 2, 12), {.columns = 200, .colors = true});
  CHECK(says(text, "m11 "));
  CHECK(says(text, "\x1b[0m"));
  std::string bare;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      bare += text[i];
    }
  }
  for (const std::string& line : lines_of(bare)) CHECK(line.size() <= 200);
  CHECK_FALSE(says(bare, "F0"));
}

TEST_CASE("no line of text is wider than it may be", "[pictures]") {
  const bool held = rc::check("of any program at any width", [] {
    const int stages = *rc::gen::inRange(1, 12);
    const int ranks = *rc::gen::inRange(1, stages + 1);
    Placement placement;
    for (int s = 0; s < stages; ++s) placement.ranks.push_back({Rank{s % ranks}});
    const Panel panel = panel_of("1f1b", placement, *rc::gen::inRange(1, 40));
    const int columns = *rc::gen::inRange(-5, 240);
    const auto rows = static_cast<std::size_t>(*rc::gen::inRange(0, 14));
    const auto lines = lines_of(to_text(panel, {.columns = columns, .most_rows = rows}));
    RC_ASSERT(lines.size() >= std::min<std::size_t>(std::max<std::size_t>(rows, 1), ranks) + 3);
    for (const std::string& line : lines) {
      if (line.starts_with("lower case:")) continue;  // one sentence; narrow terminals wrap it
      RC_ASSERT(static_cast<int>(line.size()) <= std::max(columns, 20));
    }
    RC_ASSERT(well_formed_xml(to_svg({panel})));
  });
  CHECK(held);
}

}  // namespace stagecraft
