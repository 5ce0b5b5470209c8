// Mutations: a correct program with one thing changed is refused, unless it still does the same. Whether it
// does is decided by an interpreter that knows nothing of the checker (interpreter.h), under several random
// timings. What must never be: accepted by the checker, wrong in the interpreter. The other way round the
// checker is stricter in two things only, which the test pins: an action must name the group it belongs to
// even where nothing follows from that, and nothing is recomputed twice.

#include "schedules/checker/checker.h"
#include "schedules/program/program_text.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_rules.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>

namespace stagecraft {
namespace {

using Random = std::mt19937;

std::size_t pick(Random& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

/// A random place in a program that has actions.
struct Where {
  std::vector<Action>* list;
  std::size_t at;
  [[nodiscard]] Action& action() const { return (*list)[at]; }
};

Where somewhere(LoweredProgram& program, Random& random) {
  for (;;) {
    auto& list = program.ranks[pick(random, program.ranks.size())];
    if (!list.empty()) return {&list, pick(random, list.size())};
  }
}

/// The n-th of the actions that fulfil `wanted`; false when there are none.
template <class Wanted>
bool somewhere(LoweredProgram& program, Random& random, Wanted wanted, Where& where) {
  std::vector<Where> all;
  for (auto& list : program.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (wanted(list[i])) all.push_back({&list, i});
    }
  }
  if (all.empty()) return false;
  where = all[pick(random, all.size())];
  return true;
}

void move_to(const Where& where, std::size_t to) {
  const Action action = where.action();
  where.list->erase(where.list->begin() + static_cast<std::ptrdiff_t>(where.at));
  where.list->insert(where.list->begin() + static_cast<std::ptrdiff_t>(to), action);
}

/// Another small number near `value`, out of range at times.
std::int32_t other(Random& random, std::int32_t value) {
  static constexpr std::array steps{-2, -1, -1, 1, 1, 2, 100};
  return value + steps[pick(random, steps.size())];
}

/// Changes one thing; false when the program has no such thing.
using Mutation = std::function<bool(LoweredProgram&, Random&)>;

template <class Wanted, class Change>
Mutation change(Wanted wanted, Change how) {
  return [=](LoweredProgram& program, Random& random) {
    Where where{};
    if (!somewhere(program, random, wanted, where)) return false;
    how(where.action(), random);
    return true;
  };
}

template <class Wanted>
Mutation drop(Wanted wanted) {
  return [=](LoweredProgram& program, Random& random) {
    Where where{};
    if (!somewhere(program, random, wanted, where)) return false;
    where.list->erase(where.list->begin() + static_cast<std::ptrdiff_t>(where.at));
    return true;
  };
}

/// Moves an action forward or backward in its own list.
template <class Wanted>
Mutation shift(Wanted wanted, bool earlier, bool later) {
  return [=](LoweredProgram& program, Random& random) {
    Where where{};
    if (!somewhere(program, random, wanted, where)) return false;
    const std::size_t from = earlier ? 0 : where.at;
    const std::size_t to = later ? where.list->size() : where.at + 1;
    move_to(where, from + pick(random, to - from));
    return true;
  };
}

template <Op... ops>
bool is(const Action& action) {
  return ((action.op == ops) || ...);
}

const std::map<std::string, Mutation>& mutations() {
  const auto any = [](const Action&) { return true; };
  const auto computes = [](const Action& a) { return is_compute(a.op); };
  const auto transfers = [](const Action& a) { return is_transfer(a.op); };
  const auto waits = [](const Action& a) { return is<Op::wait_receive, Op::wait_send>(a); };
  static const std::map<std::string, Mutation> all{
      {"delete", drop(any)},
      {"drop a wait", drop(waits)},
      {"drop a release", drop(is<Op::release>)},
      {"duplicate",
       [](LoweredProgram& program, Random& random) {
         const Where where = somewhere(program, random);
         const Action action = where.action();
         const auto to = static_cast<std::ptrdiff_t>(pick(random, where.list->size() + 1));
         where.list->insert(where.list->begin() + to, action);
         return true;
       }},
      {"swap adjacent",
       [](LoweredProgram& program, Random& random) {
         const Where where = somewhere(program, random);
         if (where.at + 1 == where.list->size()) return false;
         std::swap((*where.list)[where.at], (*where.list)[where.at + 1]);
         return true;
       }},
      {"swap two",
       [](LoweredProgram& program, Random& random) {
         const Where where = somewhere(program, random);
         std::swap((*where.list)[where.at], (*where.list)[pick(random, where.list->size())]);
         return true;
       }},
      {"move", shift(any, true, true)},
      {"release earlier", shift(is<Op::release>, true, false)},
      {"post later", shift(is<Op::post_receive>, false, true)},
      {"send earlier", shift(is<Op::start_send>, true, false)},
      {"send later", shift(is<Op::start_send>, false, true)},
      {"wait earlier", shift(waits, true, false)},
      {"step elsewhere", shift(is<Op::step, Op::agree_norm, Op::reduce>, true, true)},
      {"other rank",
       [](LoweredProgram& program, Random& random) {
         const Where where = somewhere(program, random);
         auto& target = program.ranks[pick(random, program.ranks.size())];
         if (&target == where.list) return false;
         const Action action = where.action();
         where.list->erase(where.list->begin() + static_cast<std::ptrdiff_t>(where.at));
         target.insert(target.begin() + static_cast<std::ptrdiff_t>(pick(random, target.size() + 1)), action);
         return true;
       }},
      {"other op",
       [](LoweredProgram& program, Random& random) {
         const Where where = somewhere(program, random);
         const Op op = static_cast<Op>(pick(random, enum_names<Op>.size()));
         if (op == where.action().op) return false;
         where.action().op = op;
         return true;
       }},
      {"other version",
       change([](const Action& a) { return a.version.valid(); },
              [](Action& a, Random& random) { a.version.value = other(random, a.version.value); })},
      {"other micro-batch",
       change([](const Action& a) { return a.micro_batch.valid(); },
              [](Action& a, Random& random) { a.micro_batch.value = other(random, a.micro_batch.value); })},
      {"other group",
       change([](const Action& a) { return a.group.valid(); },
              [](Action& a, Random& random) { a.group.value = other(random, a.group.value); })},
      {"other stage",
       change([](const Action& a) { return a.stage.valid(); },
              [](Action& a, Random& random) { a.stage.value = other(random, a.stage.value); })},
      {"other slot", change([](const Action& a) { return a.slot.valid(); },
                            [](Action& a, Random& random) { a.slot.value = other(random, a.slot.value); })},
      {"no slot",
       change([](const Action& a) { return a.slot.valid(); }, [](Action& a, Random&) { a.slot = {}; })},
      {"other tag: micro-batch",
       change(transfers, [](Action& a, Random& random) { a.tag.number = other(random, a.tag.number); })},
      {"other tag: stage", change(transfers,
                                  [](Action& a, Random& random) {
                                    auto& end = random() % 2 == 0 ? a.tag.from : a.tag.to;
                                    end.value = other(random, end.value);
                                  })},
      {"other tag: index",
       change(transfers, [](Action& a, Random& random) { a.tag.index = other(random, a.tag.index); })},
      {"other tag: direction", change(transfers,
                                      [](Action& a, Random&) {
                                        std::swap(a.tag.from, a.tag.to);
                                        a.tag.payload = a.tag.payload == Payload::gradient
                                                            ? Payload::activation
                                                            : Payload::gradient;
                                      })},
      {"other slot table",
       [](LoweredProgram& program, Random& random) {
         auto& slots = program.slots[pick(random, program.slots.size())];
         if (slots.empty()) return false;
         SlotInfo& slot = slots[pick(random, slots.size())];
         if (random() % 2 == 0) {
           slot.to.value = other(random, slot.to.value);
         } else {
           slot.payload = slot.payload == Payload::gradient ? Payload::activation : Payload::gradient;
         }
         return true;
       }},
      {"split wrongly", change([&](const Action& a) { return a.op == Op::backward; },
                               [](Action& a, Random& random) {
                                 a.op = random() % 2 == 0 ? Op::backward_input : Op::backward_weight;
                               })},
      {"compute again",
       [computes](LoweredProgram& program, Random& random) {
         Where where{};
         if (!somewhere(program, random, computes, where)) return false;
         where.list->insert(where.list->begin() + static_cast<std::ptrdiff_t>(where.at), where.action());
         return true;
       }},
  };
  return all;
}

/// Another seed tries other mutations.
unsigned seed_of_run() {
  const char* wanted = std::getenv("STAGECRAFT_TEST_SEED");
  return static_cast<unsigned>(wanted != nullptr ? std::atoi(wanted) : 20261121);
}

constexpr unsigned kTimings = 3;

/// What the program does, and whether it does so under every timing tried.
test::Outcome outcome_of(const LoweredProgram& program, const TransportRules& rules = {},
                         const CostTable* costs = nullptr) {
  const test::Outcome first = test::interpret(program, 1, rules, costs);
  for (unsigned seed = 2; seed <= kTimings && first.wrong.empty(); ++seed) {
    test::Outcome again = test::interpret(program, seed, rules, costs);
    if (again != first) {
      if (again.wrong.empty()) again.wrong = "the result depends on timing";
      return again;
    }
  }
  return first;
}

struct Count {
  int made = 0, wrong = 0, refused = 0, refused_right = 0;
};

bool agrees(const LoweredProgram& program) {
  for (const auto& list : program.ranks) {
    if (std::any_of(list.begin(), list.end(), is<Op::agree_norm>)) return true;
  }
  return false;
}

bool stricter_on_purpose(const Proof& proof) {
  const std::string& message = proof.findings.front().message;
  return message.find("names group") != std::string::npos ||
         (message.find("recompute") != std::string::npos &&
          message.find("expected once") != std::string::npos);
}

void mutate_all(const std::vector<test::GridProgram>& grid, int repeats, unsigned seed,
                std::map<std::string, Count>& counts) {
  Random random(seed);
  for (const auto& entry : grid) {
    const test::Outcome expected = outcome_of(entry.program);
    INFO(entry.name);
    REQUIRE(expected.wrong.empty());
    for (const auto& [kind, mutate] : mutations()) {
      for (int i = 0; i < repeats; ++i) {
        LoweredProgram mutant = entry.program;
        if (!mutate(mutant, random) || mutant == entry.program) continue;
        // Without any norm agreement it is a good program for a run that does not clip.
        if (agrees(entry.program) && !agrees(mutant)) continue;
        const Proof proof = check(mutant);
        test::Outcome outcome = outcome_of(mutant);
        if (outcome.wrong.empty() && outcome != expected) outcome.wrong = "another result";
        Count& count = counts[kind];
        ++count.made;
        count.refused += proof.accepted() ? 0 : 1;
        count.wrong += outcome.wrong.empty() ? 0 : 1;
        if (!outcome.wrong.empty() && proof.accepted()) {
          FAIL_CHECK(entry.name << ": \"" << kind << "\" was accepted, but: " << outcome.wrong << "\n"
                                << to_text(mutant));
          return;
        }
        if (outcome.wrong.empty() && !proof.accepted()) {
          ++count.refused_right;
          if (stricter_on_purpose(proof)) continue;
          FAIL_CHECK(entry.name << ": \"" << kind
                                << "\" comes out right, but: " << proof.findings.front().message << "\n"
                                << to_text(mutant));
          return;
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("no mutation that goes wrong is accepted", "[mutation]") {
  std::map<std::string, Count> counts;
  const auto seed = seed_of_run();
  INFO("seed " << seed);
  mutate_all(test::program_grid(test::straight_placements()), 2, seed, counts);
  mutate_all(test::program_grid(test::odd_placements()), 2, seed + 1, counts);
  Count all;
  // Accepted are those that do the same as before under every timing tried; refused, right: see above.
  fmt::print("{:24} {:>8} {:>8} {:>8} {:>8} {:>16}\n", "mutation", "made", "wrong", "refused", "accepted",
             "refused, right");
  for (const auto& [kind, count] : counts) {
    fmt::print("{:24} {:8} {:8} {:8} {:8} {:16}\n", kind, count.made, count.wrong, count.refused,
               count.made - count.refused, count.refused_right);
    all.made += count.made;
    all.wrong += count.wrong;
    all.refused += count.refused;
    all.refused_right += count.refused_right;
  }
  fmt::print("{:24} {:8} {:8} {:8} {:8} {:16}\n", "all", all.made, all.wrong, all.refused,
             all.made - all.refused, all.refused_right);
  CHECK(all.wrong > 1000);
}

// What each transport adds: other waits, other ends that meet. Only the changes that touch transfers, which
// is what the rules are about. A mutant that the rules let pass runs to the end under them, and computes what
// the program did.
TEST_CASE("no mutation that goes wrong is accepted under any transport's rules", "[mutation]") {
  const auto seed = seed_of_run();
  INFO("seed " << seed);
  auto grid = test::program_grid(test::straight_placements());
  for (auto& odd : test::program_grid(test::odd_placements())) grid.push_back(std::move(odd));
  std::vector<std::pair<std::string, Mutation>> kinds;
  for (const char* kind :
       {"delete", "duplicate", "swap adjacent", "swap two", "move", "release earlier", "post later",
        "send earlier", "send later", "wait earlier", "other slot", "other tag: micro-batch"}) {
    kinds.emplace_back(kind, mutations().at(kind));
  }
  fmt::print("{:32} {:>8} {:>8} {:>8} {:>16}\n", "rules", "made", "wrong", "refused", "refused, right");
  for (const std::string& name : test::all_rules()) {
    const TransportRules rules = transport_rules(name);
    Random random(seed);
    Count count;
    for (std::size_t i = random() % 8; i < grid.size(); i += 8) {  // another part of the grid for each seed
      const auto& entry = grid[i];
      const CostTable sizes = test::sizes_for(entry.program.placement.stages());
      // As it stands, or posted in the order of sends where that is asked for.
      if (!check(entry.program, &sizes, std::nullopt, rules).accepted()) continue;
      const test::Outcome expected = outcome_of(entry.program);
      for (const auto& [kind, mutate] : kinds) {
        LoweredProgram mutant = entry.program;
        if (!mutate(mutant, random) || mutant == entry.program) continue;
        if (agrees(entry.program) && !agrees(mutant)) continue;
        const Proof proof = check(mutant, &sizes, std::nullopt, rules);
        test::Outcome outcome = outcome_of(mutant, rules, &sizes);
        if (outcome.wrong.empty() && outcome != expected) outcome.wrong = "another result";
        ++count.made;
        count.refused += proof.accepted() ? 0 : 1;
        count.wrong += outcome.wrong.empty() ? 0 : 1;
        if (outcome.wrong.empty() && !proof.accepted()) {
          ++count.refused_right;
          INFO(name << ", " << entry.name << ": \"" << kind
                    << "\" comes out right, but: " << refusal(proof.findings) << "\n"
                    << to_text(mutant));
          REQUIRE(stricter_on_purpose(proof));
        }
        INFO(name << ", " << entry.name << ": \"" << kind << "\" was accepted, but: " << outcome.wrong << "\n"
                  << to_text(mutant));
        REQUIRE((outcome.wrong.empty() || !proof.accepted()));
      }
    }
    fmt::print("{:32} {:8} {:8} {:8} {:16}\n", name, count.made, count.wrong, count.refused,
               count.refused_right);
    CHECK(count.made > 50);
    CHECK(count.wrong > 20);
  }
}

// Two changes may agree with each other (another version read by both forward and backward is another
// schedule), so results may differ from the original's; but nothing may go wrong.
TEST_CASE("two mutations at once: what is accepted runs to the end", "[mutation]") {
  const auto seed = seed_of_run();
  INFO("seed " << seed);
  Random random(seed + 2);
  std::vector<Mutation> kinds;
  for (const auto& [kind, mutation] : mutations()) kinds.push_back(mutation);
  int made = 0;
  int accepted = 0;
  auto grid = test::program_grid(test::straight_placements());
  for (auto& odd : test::program_grid(test::odd_placements())) grid.push_back(std::move(odd));
  for (const auto& entry : grid) {
    for (int i = 0; i < 20; ++i) {
      LoweredProgram mutant = entry.program;
      for (int change = 0; change < 2; ++change) {
        const bool any_left = std::any_of(mutant.ranks.begin(), mutant.ranks.end(),
                                          [](const auto& list) { return !list.empty(); });
        if (any_left) kinds[pick(random, kinds.size())](mutant, random);
      }
      ++made;
      if (!check(mutant).accepted()) continue;
      ++accepted;
      const test::Outcome outcome = outcome_of(mutant);
      INFO(entry.name << "\n" << outcome.wrong << "\n" << to_text(mutant));
      REQUIRE(outcome.wrong.empty());
    }
  }
  fmt::print("two mutations: {} made, {} accepted, all of them ran to the end\n", made, accepted);
}

}  // namespace stagecraft
