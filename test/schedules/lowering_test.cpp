#include "schedules/lowering/lowering.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/program/program_text.h"
#include "schedules/rules/dependencies.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/slot_replay.h"
#include "test/support/catch.h"

#include <fstream>
#include <sstream>

namespace stagecraft {
namespace {

ScheduleProgram from_lines(const std::string& stages, const std::string& groups, const std::string& ranks) {
  return program_from_text("stagecraft program 1\nstages " + stages + "\ngroups " + groups + "\n" + ranks,
                           "test.txt");
}

/// Why the program is refused, by lowering or by the proof.
std::string message_of(const ScheduleProgram& program, const LoweringOptions& options = {}) {
  try {
    prove(lower(program, options));
  } catch (const RefusedError& error) {
    return error.what();
  }
  return "";
}

/// Backward in two halves, the weight half as late as the step allows; sometimes a recomputation.
ScheduleProgram split_backwards(ScheduleProgram program) {
  for (auto& list : program.ranks) {
    std::vector<Action> split;
    std::vector<Action> weights;
    for (const Action& a : list) {
      if (a.op == Op::reduce || a.op == Op::agree_norm || a.op == Op::step) {
        split.insert(split.end(), weights.begin(), weights.end());
        weights.clear();
      }
      if (a.op != Op::backward) {
        split.push_back(a);
        continue;
      }
      Action part = a;
      if (a.micro_batch.value % 2 == 0) {
        part.op = Op::recompute;
        split.push_back(part);
      }
      part.op = Op::backward_input;
      split.push_back(part);
      part.op = Op::backward_weight;
      weights.push_back(part);
    }
    list = std::move(split);
  }
  return program;
}

/// Everything but transfers and slots, as the schedule had it.
std::vector<std::vector<Action>> without_transfers(const LoweredProgram& program) {
  std::vector<std::vector<Action>> ranks(program.ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (Action a : program.ranks[r]) {
      if (is_transfer(a.op) || a.op == Op::release) continue;
      a.slot = Slot{};
      ranks[r].push_back(a);
    }
  }
  return ranks;
}

void assert_sound(const ScheduleProgram& program, const LoweredProgram& lowered, int sends_in_flight) {
  RC_ASSERT(without_transfers(lowered) == program.ranks);
  const Dependencies dependencies(lowered);
  RC_ASSERT(dependencies.acyclic());
  RC_ASSERT(dependencies.problems() == std::vector<std::string>{});
  for (std::size_t r = 0; r < lowered.ranks.size(); ++r) {
    RC_ASSERT(replay_slots(lowered, r, sends_in_flight) == "");
  }
}

}  // namespace

TEST_CASE("1f1b over two ranks, every transfer and slot", "[lowering]") {
  std::ifstream in(STAGECRAFT_TEST_DATA "/schedules/lowered_1f1b_p2_m3.txt");
  REQUIRE(in);
  std::ostringstream golden;
  golden << in.rdbuf();
  CHECK(to_text(lower(find_schedule("1f1b").generate(
            {.placement = Placement::straight(2), .group_sizes = {3}}))) == golden.str());
}

TEST_CASE("a lowered program finishes under rendezvous, and its slots and sends are in order", "[lowering]") {
  REQUIRE(rc::check([] {
    ScheduleProgram program = random_program().program;
    if (*rc::gen::arbitrary<bool>()) program = split_backwards(std::move(program));
    LoweringOptions options;
    options.extra_slots = *rc::gen::inRange(0, 3);
    options.sends_in_flight = *rc::gen::inRange(1, 4);
    assert_sound(program, lower(program, options), options.sends_in_flight);
  }));
}

TEST_CASE("least_slots works and one fewer does not", "[lowering]") {
  REQUIRE(rc::check([] {
    const ScheduleProgram program = random_program().program;
    LoweringOptions options;
    options.slots_per_channel = least_slots(program).value();
    const LoweredProgram lowered = lower(program, options);
    assert_sound(program, lowered, options.sends_in_flight);
    RC_ASSERT(lowered.slots_per_channel == options.slots_per_channel ||
              options.slots_per_channel == 0);  // 0 asks for as many as are needed: none here
    if (options.slots_per_channel <= 1) return;
    --options.slots_per_channel;
    RC_ASSERT(message_of(program, options) != "");
  }));
}

TEST_CASE("validation lowers soundly and holds no more than it reads", "[lowering]") {
  REQUIRE(rc::check([] {
    // Where ranks hold several stages a third slot can be what resolves a deadlock between them.
    const bool one_stage_a_rank = *rc::gen::arbitrary<bool>();
    const Placement placement = one_stage_a_rank ? random_widths(5) : random_shared();
    const ScheduleProgram program = validation_program(placement, *rc::gen::inRange(1, 12));
    const LoweredProgram lowered = lower(program);
    assert_sound(program, lowered, 2);
    if (one_stage_a_rank) RC_ASSERT(lowered.slots_per_channel <= 2);
  }));
}

TEST_CASE("slots by schedule: one a kept input, one more under way", "[lowering]") {
  const auto slots = [](const char* schedule, int p, int m) {
    return lower(find_schedule(schedule).generate({.placement = Placement::straight(p), .group_sizes = {m}}))
        .slots;
  };
  // Rank 1 of 4: activations kept by 1f1b p - s = 3, by fill_drain m = 8; gradients are read one at a time.
  const auto count = [](const std::vector<SlotInfo>& all, Payload payload) {
    return std::count_if(all.begin(), all.end(), [&](const SlotInfo& s) { return s.payload == payload; });
  };
  CHECK(count(slots("1f1b", 4, 8)[1], Payload::activation) == 4);
  CHECK(count(slots("1f1b", 4, 8)[1], Payload::gradient) == 2);
  CHECK(count(slots("fill_drain", 4, 8)[1], Payload::activation) == 8);
  CHECK(count(slots("fill_drain", 4, 8)[1], Payload::gradient) == 2);
  CHECK(count(slots("1f1b", 4, 1)[1], Payload::activation) == 1);  // never more than there are transfers
}

TEST_CASE("losses do not hold an asynchronous pipeline up", "[lowering]") {
  // The last stage reports group g while stage 0 is p - 1 groups behind: all must find a slot.
  const LoweredProgram lowered =
      lower(find_schedule("pipedream")
                .generate({.placement = Placement::straight(6), .group_sizes = std::vector<int>(40, 1)}));
  const auto losses = std::count_if(lowered.slots[0].begin(), lowered.slots[0].end(),
                                    [](const SlotInfo& s) { return s.payload == Payload::loss; });
  CHECK(losses == 7);
}

TEST_CASE("losses get more slots where the usual ones deadlock", "[lowering]") {
  // Rank 1 reports five losses before it sends the first gradient, and rank 0 gathers none before it has
  // that: a staleness of 4 updates.
  const auto program = from_lines("0 1", "6x1",
                                  "rank 0: L0 F0 L1 F1 L2 F2 L3 F3 L4 F4 B0 S0 P0 L5 F5 "
                                  "B1 S1 P1 B2 S2 P2 B3 S3 P3 B4 S4 P4 B5 S5 P5\n"
                                  "rank 1: L0 F0 P0 L1 F1 P1 L2 F2 P2 L3 F3 P3 L4 F4 P4 B0 S0 L5 F5 P5 "
                                  "B1 S1 B2 S2 B3 S3 B4 S4 B5 S5\n");
  CHECK(message_of(program) == "");
  CHECK(least_slots(program) == 5);
  CHECK(message_of(program, {.slots_per_channel = 5}) == "");
  const LoweredProgram lowered = lower(program);
  CHECK(replay_slots(lowered, 0, 2) == "");
  const auto losses = std::count_if(lowered.slots[0].begin(), lowered.slots[0].end(),
                                    [](const SlotInfo& s) { return s.payload == Payload::loss; });
  CHECK(losses == 5);  // as many as it takes, not all six
}

TEST_CASE("a program that waits in a circle is refused with the circle, whatever the slots", "[lowering]") {
  // Rank 0 wants the gradient of micro-batch 0 before it makes micro-batch 1, rank 1 wants both first.
  const auto program =
      from_lines("0 1", "2", "rank 0: L0 F0 B0 L1 F1 B1 S0 P0\nrank 1: L0 F0 L1 F1 P0 B0 B1 S0\n");
  const std::string message = message_of(program);
  INFO(message);
  CHECK(message.find("no number of receive slots helps") != std::string::npos);
  CHECK(message.find("wait for gradient 0 from stage 1 to stage 0") != std::string::npos);
  CHECK(message.find("for rank 1 to pass") != std::string::npos);
  CHECK(message.find("rank 1 waits at") != std::string::npos);
  CHECK(message.find("wait for activation 1 from stage 0 to stage 1") != std::string::npos);
  CHECK_FALSE(least_slots(program));
  CHECK(message_of(program, {.slots_per_channel = 2}) != "");
}

TEST_CASE("collectives in two orders are a circle", "[lowering]") {
  const auto program = from_lines("0,1 0,1", "2",
                                  "rank 0: 0L0 0F0 1L0 1F0 1B0 0B0 0A0 1A0 0S0 1S0 0P0\n"
                                  "rank 1: 0L1 0F1 1L1 1F1 1P0 1B1 0B1 1A0 0A0 0S0 1S0\n");
  const std::string message = message_of(program);
  INFO(message);
  CHECK(message.find("reduction of group 0 on stage 0") != std::string::npos);
  CHECK(message.find("reduction of group 0 on stage 1") != std::string::npos);
}

TEST_CASE("too few slots are refused with who needs how many", "[lowering]") {
  const auto program =
      find_schedule("fill_drain").generate({.placement = Placement::straight(2), .group_sizes = {5}});
  CHECK(message_of(program, {.slots_per_channel = 4}) ==
        "slots_per_channel is 4, but rank 1 reads 5 activations from stage 0 to stage 1 at once");
  CHECK_THROWS_AS(lower(program, {.sends_in_flight = 0}), InputError);
  CHECK_THROWS_AS(lower(program, {.slots_per_channel = -1}), InputError);
}

TEST_CASE("slots that the reads alone do not ask for are found by the search", "[lowering]") {
  // Rank 0 sends 0 and 1 before it takes a gradient; rank 1 takes 1 first. One slot is read at a time, but
  // activation 0 must not be in the only one.
  const auto program = from_lines("0 1", "2",
                                  "rank 0: L0 F0 L1 F1 B1 B0 S0 P0\n"
                                  "rank 1: L1 F1 B1 L0 F0 P0 B0 S0\n");
  CHECK(least_slots(program) == 2);
  const std::string one = message_of(program, {.slots_per_channel = 1});
  INFO(one);
  CHECK(one.find("ranks 0, 1 wait for each other") != std::string::npos);
  CHECK(one.find("no number of receive slots helps") == std::string::npos);
  CHECK(lower(program, {.extra_slots = 0}).slots_per_channel == 2);
}

TEST_CASE("incomplete and inconsistent programs are lowered as they stand, for the checker", "[lowering]") {
  const auto lowered = [](const std::string& ranks) { return lower(from_lines("0 1", "2", ranks)); };
  CHECK(Dependencies(lowered("rank 0: L0 F0\nrank 1:\n")).problems().size() == 1);
  CHECK(!Dependencies(lowered("rank 0: L0 F0 F0\nrank 1: F0\n")).problems().empty());
  CHECK(!Dependencies(lowered("rank 0: N0\nrank 1:\n")).problems().empty());
  CHECK(!Dependencies(lowered("rank 0: P0\nrank 1:\n")).problems().empty());
  // Random lists of random actions: whatever they are, no crash, and no loop.
  REQUIRE(rc::check([] {
    std::string ranks;
    for (int r = 0; r < 3; ++r) {
      ranks += "rank " + std::to_string(r) + ":";
      for (const char c : *rc::gen::container<std::string>(
               rc::gen::element('L', 'F', 'B', 'I', 'W', 'R', 'A', 'N', 'S', 'P'))) {
        const std::string stage = c == 'N' ? "" : std::to_string(*rc::gen::inRange(0, 2));
        const bool group = c == 'A' || c == 'N' || c == 'S' || c == 'P';
        ranks += " " + stage + c + std::to_string(*rc::gen::inRange(0, group ? 2 : 3));
      }
      ranks += "\n";
    }
    (void)Dependencies(lower(from_lines("0 1,2", "2 1", ranks)));
  }));
}

TEST_CASE("lowering is linear", "[lowering]") {
  // Half a second; were it quadratic, this would take longer than ctest waits.
  const auto program =
      find_schedule("fill_drain").generate({.placement = Placement::straight(8), .group_sizes = {50'000}});
  CHECK(Dependencies(lower(program)).acyclic());
}

}  // namespace stagecraft
