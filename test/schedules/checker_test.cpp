#include "schedules/checker/checker.h"

#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/memory/stage_counts.h"
#include "schedules/rules/staleness.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/program_grid.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <map>

namespace stagecraft {
namespace {

std::string text_of(const Proof& proof) {
  std::string text;
  for (const Finding& finding : proof.findings) {
    text += enum_name(finding.kind) + ": " + finding.message + "\n";
    for (const std::string& line : finding.cycle) text += "  " + line + "\n";
  }
  return text;
}

std::vector<Placement> all_placements() {
  auto all = test::straight_placements();
  for (auto& odd : test::odd_placements()) all.push_back(std::move(odd));
  return all;
}

}  // namespace

TEST_CASE("every generated program is accepted", "[checker]") {
  for (const auto& entry : test::program_grid(all_placements())) {
    const Proof proof = check(entry.program);
    INFO(entry.name << "\n" << text_of(proof));
    CHECK(proof.accepted());
  }
}

TEST_CASE("every schedule is in the grid of programs, on every kind of placement it is made for",
          "[checker]") {
  std::map<std::string, int> programs;
  for (const auto& entry : test::program_grid(all_placements())) {
    if (entry.schedule != nullptr) ++programs[entry.schedule->name];
  }
  for (const Schedule& schedule : schedules()) {
    INFO(schedule.name);
    CHECK(programs[schedule.name] >= 40);
  }
}

TEST_CASE("what is derived is what stage_counts() read off the schedule", "[checker]") {
  for (const auto& entry : test::program_grid(all_placements())) {
    if (entry.schedule == nullptr || entry.name.find("split") != std::string::npos ||
        entry.name.find("both") != std::string::npos) {
      continue;
    }
    std::map<StageId, StageProof> most;  // over a stage's replicas
    for (const StageProof& proof : check(entry.program).stages) {
      StageProof& so_far = most.try_emplace(proof.stage, proof).first->second;
      so_far.in_flight = std::max(so_far.in_flight, proof.in_flight);
      so_far.versions_alive = std::max(so_far.versions_alive, proof.versions_alive);
    }
    const std::vector<StageCounts> read = stage_counts(entry.schedule->generate(entry.request));
    for (const auto& [stage, proof] : most) {
      INFO(entry.name << " stage " << stage.value);
      const bool frozen = stage < entry.request.gradient_from;
      CHECK(proof.in_flight == (frozen ? 0 : read[stage.index()].in_flight));
      CHECK(proof.versions_alive == read[stage.index()].versions);
    }
  }
}

TEST_CASE("staleness: p - 1 - s updates with stashing, p - 1 with vertical sync, none with a flush",
          "[checker]") {
  const int p = 4;
  const std::vector<int> one_each(10, 1);
  const auto staleness = [&](const char* name, bool vertical_sync, const std::vector<int>& groups) {
    std::vector<std::pair<int, int>> all;
    for (const auto& stage :
         check(lower(find_schedule(name).generate({Placement::straight(p), groups, vertical_sync}))).stages) {
      all.emplace_back(stage.staleness_min, stage.staleness_max);
    }
    return all;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  // The first micro-batches find fewer updates to miss.
  CHECK(staleness("pipedream", false, one_each) == Pairs{{0, 3}, {0, 2}, {0, 1}, {0, 0}});
  CHECK(staleness("pipedream", true, one_each) == Pairs{{0, 3}, {0, 3}, {0, 3}, {0, 3}});
  CHECK(staleness("pipedream", false, {4, 4, 4}) == Pairs{{0, 1}, {0, 1}, {0, 1}, {0, 0}});
  CHECK(staleness("1f1b", false, {8}) == Pairs{{0, 0}, {0, 0}, {0, 0}, {0, 0}});
}

TEST_CASE("staleness of an update: means over its micro-batches, and over those that read what it writes",
          "[checker]") {
  const auto updates = [](const char* name, const std::vector<int>& groups, int stage) {
    const auto program = lower(find_schedule(name).generate({Placement::straight(4), groups}));
    return staleness_of_updates(program, StageId{stage});
  };
  using Updates = std::vector<UpdateStaleness>;
  // Stage 0 of 4 is 3 micro-batches ahead. Nobody reads the last version of a segment.
  CHECK(updates("pipedream", {4, 4, 4}, 0) == Updates{{0, 0.75}, {0.75, 0}, {0.75, 0}});
  CHECK(updates("pipedream", {4, 4, 4}, 2) == Updates{{0, 0.25}, {0.25, 0}, {0.25, 0}});
  CHECK(updates("pipedream", {4, 4, 4}, 3) == Updates{{0, 0}, {0, 0}, {0, 0}});
  CHECK(updates("2bw", {4, 4, 4}, 3) == Updates{{0, 1}, {1, 0}, {1, 0}});
  CHECK(updates("1f1b", {8}, 0) == Updates{{0, 0}});
}

namespace {

LoweredProgram one_f_one_b(int stages, int micro_batches) {
  return lower(find_schedule("1f1b").generate({Placement::straight(stages), {micro_batches}}));
}

/// Where `rank` does `op` for `micro_batch` (a transfer's too), the n-th time.
std::size_t find(const LoweredProgram& program, int rank, Op op, int micro_batch) {
  const auto& list = program.ranks[static_cast<std::size_t>(rank)];
  const auto found = std::find_if(list.begin(), list.end(), [&](const Action& a) {
    return a.op == op && (is_transfer(op) ? a.tag.number : a.micro_batch.value) == micro_batch;
  });
  REQUIRE(found != list.end());
  return static_cast<std::size_t>(found - list.begin());
}

void erase(LoweredProgram& program, int rank, std::size_t at) {
  auto& list = program.ranks[static_cast<std::size_t>(rank)];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
}

/// The classic: every activation and gradient is received only where it is waited for.
LoweredProgram posted_late(LoweredProgram program) {
  for (auto& list : program.ranks) {
    std::map<Tag, Action> posts;
    std::vector<Action> late;
    for (const Action& action : list) {
      const bool loss = action.tag.payload == Payload::loss;
      if (action.op == Op::post_receive && !loss) {
        posts[action.tag] = action;
        continue;
      }
      if (action.op == Op::wait_receive && !loss) late.push_back(posts.at(action.tag));
      late.push_back(action);
    }
    list = late;
  }
  return program;
}

/// The one finding of that kind; fails when there is none.
Finding finding_of(const Proof& proof, Finding::Kind kind) {
  INFO(text_of(proof));
  const auto found = std::find_if(proof.findings.begin(), proof.findings.end(),
                                  [&](const Finding& f) { return f.kind == kind; });
  REQUIRE(found != proof.findings.end());
  return *found;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("1F1B with receives posted where they are waited for deadlocks; the cycle is named", "[checker]") {
  for (const int stages : {2, 4}) {
    const LoweredProgram naive = posted_late(one_f_one_b(stages, 4));
    const Proof proof = check(naive);
    INFO(text_of(proof));
    REQUIRE(proof.findings.size() == 1);
    const Finding& finding = proof.findings.front();
    CHECK(finding.kind == Finding::Kind::deadlock);
    REQUIRE(finding.cycle.size() == 2);
    // Each line: who stands where, waiting for what; both are the sends that face each other.
    for (const std::string& line : finding.cycle) {
      CHECK(contains(line, "start send of"));
      CHECK(contains(line, " waits at ["));
      CHECK(contains(line, " to pass ["));
      CHECK(contains(line, "post receive of"));
    }
  }
  const Proof proof = check(posted_late(one_f_one_b(2, 2)));
  CHECK(
      finding_of(proof, Finding::Kind::deadlock).cycle ==
      std::vector<std::string>{
          "rank 0 waits at [6] start send of activation 1 from stage 0 to stage 1 for rank 1 to pass [8] "
          "post "
          "receive of activation 1 from stage 0 to stage 1 into slot 1",
          "rank 1 waits at [6] start send of gradient 0 from stage 1 to stage 0 for rank 0 to pass [7] post "
          "receive of gradient 0 from stage 1 to stage 0 into slot 0"});
}

TEST_CASE("fill-drain survives late posts: its sends never face each other", "[checker]") {
  const auto program = lower(find_schedule("fill_drain").generate({Placement::straight(4), {6}}));
  CHECK(check(posted_late(program)).accepted());
}

TEST_CASE("a circle of three ranks, in waiting order", "[checker]") {
  LoweredProgram program = lower(validation_program(Placement::straight(3), 1));
  auto& list = program.ranks[0];
  const std::size_t wait = find(program, 0, Op::wait_receive, 0);  // of the loss
  const std::size_t send = find(program, 0, Op::start_send, 0);
  REQUIRE(send < wait);
  std::rotate(list.begin() + static_cast<std::ptrdiff_t>(send),
              list.begin() + static_cast<std::ptrdiff_t>(wait),
              list.begin() + static_cast<std::ptrdiff_t>(wait) + 1);
  const Proof proof = check(program);
  const Finding finding = finding_of(proof, Finding::Kind::deadlock);
  REQUIRE(finding.cycle.size() == 3);
  CHECK(contains(finding.cycle[0], "rank 0 waits at [3] wait for loss of group 0"));
  CHECK(contains(finding.cycle[1], "rank 2"));
  CHECK(contains(finding.cycle[2], "rank 1"));
}

TEST_CASE("findings name rank, place, action and what was expected", "[checker]") {
  const LoweredProgram good = one_f_one_b(2, 3);
  LoweredProgram bad = good;
  SECTION("a forward is missing") {
    erase(bad, 1, find(bad, 1, Op::forward, 2));
    CHECK(contains(finding_of(check(bad), Finding::Kind::completeness).message,
                   "rank 1: no forward of micro-batch 2 on stage 1; expected one"));
  }
  SECTION("a forward on the wrong rank") {
    const std::size_t at = find(bad, 1, Op::forward, 2);
    bad.ranks[0].push_back(bad.ranks[1][at]);
    CHECK(contains(
        finding_of(check(bad), Finding::Kind::completeness).message,
        fmt::format("rank 0 [{}] forward of micro-batch 2 on stage 1: micro-batch 2 of stage 1 belongs "
                    "to rank 1",
                    bad.ranks[0].size() - 1)));
  }
  SECTION("a step before the last gradient") {
    auto& list = bad.ranks[0];
    const auto step =
        std::find_if(list.begin(), list.end(), [](const Action& a) { return a.op == Op::step; });
    const auto backward = static_cast<std::ptrdiff_t>(find(bad, 0, Op::backward, 2));
    std::rotate(list.begin() + backward, step, step + 1);
    CHECK(contains(finding_of(check(bad), Finding::Kind::completeness).message,
                   "step of group 0 on stage 0: needs every gradient of its group, which comes only later"));
  }
  SECTION("a send without a receive") {
    erase(bad, 1, find(bad, 1, Op::post_receive, 1));
    CHECK(contains(finding_of(check(bad), Finding::Kind::matching).message,
                   "this transfer has no post_receive"));
  }
  SECTION("another version in the backward") {
    bad.ranks[0][find(bad, 0, Op::backward, 1)].version = Version{1};
    const std::string message = finding_of(check(bad), Finding::Kind::versions).message;
    CHECK(contains(message, "backward of micro-batch 1 on stage 0"));
    CHECK(contains(message, "reads version 1"));
    CHECK(contains(message, "read version 0; both must read the same"));
  }
  SECTION("a version before its step") {
    for (const Op op : {Op::forward, Op::backward}) bad.ranks[0][find(bad, 0, op, 1)].version = Version{1};
    CHECK(contains(finding_of(check(bad), Finding::Kind::versions).message,
                   "needs the step that writes version 1, which comes only later"));
  }
  SECTION("a slot released early") {
    auto& list = bad.ranks[1];
    const auto release =
        std::find_if(list.begin(), list.end(), [](const Action& a) { return a.op == Op::release; });
    std::iter_swap(release, release - 1);  // before the backward that still reads the kept input
    CHECK(contains(finding_of(check(bad), Finding::Kind::buffers).message,
                   "is free; expected it to hold activation"));
  }
  SECTION("a slot that is never released") {
    auto& list = bad.ranks[1];
    const auto release =
        std::find_if(list.rbegin(), list.rend(), [](const Action& a) { return a.op == Op::release; });
    list.erase(std::next(release).base());
    CHECK(contains(finding_of(check(bad), Finding::Kind::buffers).message, "at the end; expected a release"));
  }
  SECTION("forwards out of order") {
    // Alone on their rank, so that nothing but the order is wrong.
    bad = one_f_one_b(1, 2);
    auto& list = bad.ranks[0];
    std::stable_sort(list.begin(), list.end(), [](const Action& a, const Action& b) { return a.op < b.op; });
    REQUIRE(check(bad).accepted());
    std::swap(list[find(bad, 0, Op::forward, 0)], list[find(bad, 0, Op::forward, 1)]);
    CHECK(contains(finding_of(check(bad), Finding::Kind::completeness).message, "in micro-batch order"));
  }
  CHECK(check(good).accepted());
  CHECK_FALSE(check(bad).accepted());
  CHECK_THROWS_AS(prove(bad), RefusedError);
}

TEST_CASE("at most 20 findings", "[checker]") {
  LoweredProgram program = one_f_one_b(2, 100);
  for (auto& list : program.ranks) {
    std::erase_if(list, [](const Action& a) { return a.op == Op::wait_send; });
  }
  CHECK(check(program).findings.size() == 20);
}

TEST_CASE("malformed programs are refused, never thrown at", "[checker]") {
  const LoweredProgram good = one_f_one_b(2, 2);
  LoweredProgram bad = good;
  SECTION("nothing at all") { bad = {}; }
  SECTION("no stages") { bad.placement = {}; }
  SECTION("a stage without ranks") { bad.placement.ranks[1].clear(); }
  SECTION("a negative rank") { bad.placement.ranks[1][0] = Rank{-1}; }
  SECTION("a huge rank") { bad.placement.ranks[1][0] = Rank{std::numeric_limits<std::int32_t>::max()}; }
  SECTION("the same rank twice") { bad.placement.ranks[1].push_back(Rank{1}); }
  SECTION("no groups") { bad.group_sizes.clear(); }
  SECTION("a negative group") { bad.group_sizes = {-2}; }
  SECTION("a huge group") {
    bad.group_sizes = {std::numeric_limits<int>::max(), std::numeric_limits<int>::max()};
  }
  SECTION("more micro-batches than actions") { bad.group_sizes = {9'000'000}; }
  SECTION("many groups") { bad.group_sizes.assign(100'000, 1); }
  SECTION("a list too few") { bad.ranks.pop_back(); }
  SECTION("a list too many") { bad.ranks.emplace_back(); }
  SECTION("slot tables missing") { bad.slots.clear(); }
  SECTION("a slot from nowhere") { bad.slots[1][0].from = StageId{-7}; }
  SECTION("a slot for no payload") { bad.slots[1][0].payload = static_cast<Payload>(9); }
  SECTION("an unknown op") { bad.ranks[0][0].op = static_cast<Op>(99); }
  SECTION("an unknown payload") {
    bad.ranks[0][find(bad, 0, Op::start_send, 0)].tag.payload = static_cast<Payload>(9);
  }
  SECTION("lists empty") { bad.ranks.assign(2, {}); }
  SECTION("an unused field") { bad.ranks[0][find(bad, 0, Op::load, 0)].slot = Slot{0}; }
  SECTION("a stage far out") { bad.ranks[0][find(bad, 0, Op::forward, 0)].stage = StageId{1 << 30}; }
  SECTION("a million actions") { bad.ranks[0].assign(1'000'000, bad.ranks[0][find(bad, 0, Op::forward, 0)]); }
  SECTION("a million collectives") {
    bad.ranks[0].assign(1'000'000, Action{.op = Op::agree_norm, .group = Group{0}});
  }
  SECTION("backwards in validation") { bad.kind = SegmentKind::validate; }
  CHECK_FALSE(check(bad).accepted());
}

namespace {

int number(int low, int high) { return *rc::gen::inRange(low, high); }

/// Any values, a little out of range at times, in the fields that the op has.
Action random_action() {
  Action action{.op = static_cast<Op>(number(0, 15))};
  if (is_transfer(action.op)) {
    action.tag = {static_cast<Payload>(number(0, 4)), StageId{number(-1, 4)}, StageId{number(-1, 4)},
                  number(-1, 4), number(-1, 2)};
  } else if (action.op != Op::release) {
    if (action.op != Op::agree_norm) action.stage = StageId{number(-1, 4)};
    if (is_compute(action.op) || action.op == Op::load) action.micro_batch = MicroBatch{number(-1, 4)};
    if (is_compute(action.op) || action.op == Op::step) action.version = Version{number(-1, 3)};
    action.group = Group{number(-1, 3)};
  }
  const bool sends = action.op == Op::start_send || action.op == Op::wait_send;
  if (is_compute(action.op) || (is_transfer(action.op) && !sends) || action.op == Op::release) {
    action.slot = Slot{number(-1, 4)};
  }
  return action;
}

}  // namespace

TEST_CASE("any program at all is judged", "[checker]") {
  CHECK(rc::check("random actions", [] {
    LoweredProgram program;
    const int stages = number(1, 4);
    const int world = number(1, 4);
    for (int s = 0; s < stages; ++s) {
      auto& replicas = program.placement.ranks.emplace_back();
      for (int r = 0; r < world; ++r) {
        if (number(0, 3) == 0) replicas.emplace_back(r);
      }
      if (replicas.empty()) replicas.emplace_back(number(0, world));
    }
    program.kind = number(0, 4) == 0 ? SegmentKind::validate : SegmentKind::train;
    program.group_sizes = *rc::gen::container<std::vector<int>>(number(1, 3), rc::gen::inRange(1, 3));
    program.ranks.resize(static_cast<std::size_t>(program.placement.world()));
    program.slots.resize(program.ranks.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      program.slots[r].assign(
          3, {static_cast<Payload>(number(0, 3)), StageId{number(-1, 3)}, StageId{number(0, 3)}});
      for (int i = number(0, 40); i > 0; --i) program.ranks[r].push_back(random_action());
    }
    RC_ASSERT(check(program).findings.size() <= 20);
  }));

  const auto grid = test::program_grid(test::straight_placements());
  CHECK(rc::check("good programs with lists reversed and cut", [&] {
    LoweredProgram program = grid[static_cast<std::size_t>(number(0, static_cast<int>(grid.size())))].program;
    for (auto& list : program.ranks) {
      const int size = static_cast<int>(list.size());
      const int from = number(0, size);
      const int to = number(from, size + 1);
      if (number(0, 2) == 0) std::reverse(list.begin() + from, list.begin() + to);
      if (number(0, 8) == 0) list.resize(static_cast<std::size_t>(to));
    }
    RC_ASSERT(check(program).findings.size() <= 20);
  }));
}

namespace {

bool is_work(const Action& a) { return !is_transfer(a.op) && a.op != Op::release; }

/// Whether nothing but other ranks could mind the two changing places.
bool independent(const Action& a, const Action& b) {
  if (is_work(a) && is_work(b)) return false;
  if (a.slot.valid() && a.slot == b.slot) return false;
  if (is_transfer(a.op) && is_transfer(b.op)) return a.tag != b.tag;
  return a.op != Op::start_send && b.op != Op::start_send;  // it stands behind what makes the tensor
}

using Place = std::vector<Action>::iterator;

/// Moves an action to where nothing on its rank minds: past one neighbour; a wait for a send later, a post
/// earlier, up to what uses the same slot.
void reorder(std::vector<Action>& list) {
  const Place at = list.begin() + number(0, static_cast<int>(list.size()));
  if (at->op == Op::wait_send) {
    const Place end = std::find_if(at + 1, list.end(), [](const Action& a) { return is_compute(a.op); });
    std::rotate(at, at + 1, at + 1 + number(0, static_cast<int>(end - at)));
  } else if (at->op == Op::post_receive) {
    Place begin = at;
    while (begin != list.begin() && (begin - 1)->slot != at->slot) --begin;
    std::rotate(begin + number(0, static_cast<int>(at - begin) + 1), at, at + 1);
  } else if (at + 1 != list.end() && independent(*at, *(at + 1))) {
    std::iter_swap(at, at + 1);
  }
}

}  // namespace

TEST_CASE("good programs put in another order: what is accepted runs, to the same end", "[checker]") {
  auto grid = test::program_grid(all_placements());
  int accepted = 0;
  int refused = 0;
  CHECK(rc::check([&] {
    const LoweredProgram& original =
        grid[static_cast<std::size_t>(number(0, static_cast<int>(grid.size())))].program;
    LoweredProgram program = original;
    for (int changes = number(1, 30); changes > 0; --changes) {
      reorder(program.ranks[static_cast<std::size_t>(number(0, static_cast<int>(program.ranks.size())))]);
    }
    if (program == original) return;
    if (!check(program).accepted()) {
      ++refused;
      return;
    }
    ++accepted;
    const test::Outcome outcome = test::interpret(program, static_cast<unsigned>(number(1, 100)));
    RC_ASSERT(outcome.wrong == "");
    RC_ASSERT(outcome == test::interpret(original, 1));
  }));
  INFO(accepted << " accepted, " << refused << " refused");
  CHECK(accepted >= 20);
  CHECK(refused >= 5);
}

TEST_CASE("prove says everything at once", "[checker]") {
  const LoweredProgram naive = posted_late(one_f_one_b(2, 4));
  try {
    prove(naive);
    FAIL("accepted");
  } catch (const RefusedError& error) {
    const std::string what = error.what();
    CHECK(contains(what, "deadlock: "));
    CHECK(contains(what, "\n    rank 0 waits at ["));
    CHECK(contains(what, "\n    rank 1 waits at ["));
  }
}

}  // namespace stagecraft
