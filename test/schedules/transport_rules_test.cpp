#include "schedules/rules/transport_rules.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/lowering/transfer_run.h"
#include "schedules/program/program_text.h"
#include "schedules/rules/dependencies.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/random_rules.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

ScheduleProgram from_lines(const std::string& stages, const std::string& groups, const std::string& ranks) {
  return program_from_text("stagecraft program 1\nstages " + stages + "\ngroups " + groups + "\n" + ranks,
                           "test.txt");
}

std::string refusal_of(const Proof& proof) { return proof.accepted() ? "" : refusal(proof.findings); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Each activation and gradient is posted just before it is waited for.
LoweredProgram posted_late(LoweredProgram program) {
  for (auto& list : program.ranks) {
    std::vector<Action> late;
    for (const Action& action : list) {
      const bool loss = action.tag.payload == Payload::loss;
      if (action.op == Op::post_receive && !loss) continue;
      if (action.op == Op::wait_receive && !loss) {
        late.push_back(action);
        late.back().op = Op::post_receive;
      }
      late.push_back(action);
    }
    list = late;
  }
  return program;
}

/// Both ranks send first and post their receive behind that: what only a buffer helps.
LoweredProgram head_to_head() {
  return posted_late(
      lower(find_schedule("1f1b").generate({.placement = Placement::straight(2), .group_sizes = {2}})));
}

}  // namespace

TEST_CASE("rules are named, and what names none is refused", "[transport_rules]") {
  CHECK(transport_rules("rendezvous") == TransportRules{});
  CHECK(transport_rules("eager") == TransportRules::eager());
  CHECK(transport_rules("eager:4096") == TransportRules::eager(Bytes{4096}));
  CHECK(transport_rules("eager:4096:65536") == TransportRules::eager(Bytes{4096}, Bytes{65536}));
  CHECK(transport_rules("nccl") == TransportRules::nccl());
  CHECK_FALSE(transport_rules("nccl,unannounced").announced);
  CHECK_THROWS_WITH(transport_rules("eager,unannounced"), Catch::Matchers::ContainsSubstring("only nccl"));
  CHECK(transport_rules("nccl,pair") == TransportRules::nccl(TransportRules::Channels::pair));
  const TransportRules fifo = transport_rules("rendezvous,fifo,payload");
  CHECK(fifo.ordered());
  CHECK(fifo.channels == TransportRules::Channels::payload);
  for (const char* wrong :
       {"", "mpi", "eager:", "eager:-1", "eager:1:2:3", "eager:x", "fifo", "rendezvous,nccl",
        "nccl,"
        "tags",
        "rendezvous,,fifo"}) {
    INFO(wrong);
    CHECK_THROWS_AS(transport_rules(wrong), InputError);
  }
  CHECK_THROWS_WITH(transport_rules("rendevous"),
                    Catch::Matchers::ContainsSubstring("did you mean \"rendezvous\"?"));
}

TEST_CASE("a transport's name has one word first, and one of a kind behind commas", "[transport_rules]") {
  const std::vector<std::string> words{"rendezvous", "eager",   "nccl", "tagged",      "fifo",
                                       "boundary",   "payload", "pair", "unannounced", ""};
  const auto kind = [](const std::string& word) {
    if (word == "rendezvous" || word == "eager" || word == "nccl") return 0;
    if (word == "tagged" || word == "fifo") return 1;
    if (word == "unannounced") return 3;
    return word.empty() ? 4 : 2;
  };
  const auto right = [&](const std::vector<std::string>& name) {
    std::vector<int> kinds;
    for (const std::string& word : name) {
      const int its = kind(word);
      if (its == 4 || (its == 0) != kinds.empty()) return false;
      if (std::find(kinds.begin(), kinds.end(), its) != kinds.end()) return false;
      if (word == "unannounced" && name.front() != "nccl") return false;
      if (word == "tagged" && name.front() == "nccl") return false;
      kinds.push_back(its);
    }
    return true;
  };
  int accepted = 0;
  const auto judge = [&](const std::vector<std::string>& parts) {
    std::string name = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) name += "," + parts[i];
    INFO(name);
    std::string said;
    try {
      (void)transport_rules(name);
      ++accepted;
    } catch (const InputError& error) {
      said = error.what();
    }
    CHECK(said.empty() == right(parts));
    CHECK_FALSE(contains(said, "did you mean"));  // none of these words is a slip
  };
  for (const std::string& first : words) {
    judge({first});
    for (const std::string& second : words) {
      judge({first, second});
      for (const std::string& third : words) judge({first, second, third});
    }
  }
  CHECK(accepted == 3 + (5 + 5 + 5) + (12 + 12 + 14));
  CHECK_THROWS_WITH(
      transport_rules("unannounced"),
      Catch::Matchers::ContainsSubstring("\"unannounced\" stands behind a comma; expected rendezvous"));
  CHECK_THROWS_WITH(transport_rules("nccl,nccl"),
                    Catch::Matchers::ContainsSubstring("\"nccl\" is there twice"));
  CHECK_THROWS_WITH(transport_rules("nccl,rendezvous"),
                    Catch::Matchers::ContainsSubstring("\"nccl\" or \"rendezvous\", not both"));
  CHECK_THROWS_WITH(transport_rules("nccl,unanounced"),
                    Catch::Matchers::ContainsSubstring("did you mean \"unannounced\"?"));
}

TEST_CASE("two sends that face each other: refused under rendezvous, accepted where they are buffered",
          "[transport_rules]") {
  const LoweredProgram program = head_to_head();
  const CostTable sizes = test::sizes_for(2);  // 60 bytes per boundary
  const auto accepted = [&](const char* rules, const CostTable* costs) {
    const Proof proof = check(program, costs, std::nullopt, transport_rules(rules));
    INFO(rules << refusal_of(proof));
    const bool runs = test::interpret(program, 1, transport_rules(rules), costs).wrong.empty();
    CHECK(proof.accepted() == runs);
    return proof.accepted();
  };
  CHECK_FALSE(accepted("rendezvous", nullptr));
  CHECK(accepted("eager", nullptr));
  CHECK(accepted("eager:60", &sizes));
  CHECK_FALSE(accepted("eager:59", &sizes));
  CHECK_FALSE(accepted("eager:60", nullptr));  // of unknown size: not eager
  CHECK(accepted("eager:60:60", &sizes));
  CHECK_FALSE(accepted("eager:60:59", &sizes));
  CHECK(accepted("nccl", nullptr));  // launches do not block
}

TEST_CASE("a buffer of so many bytes holds so many messages", "[transport_rules]") {
  // After two forwards on rank 1 each rank sends two messages that the other receives only behind its own
  // two.
  const auto program = posted_late(lower(from_lines("0 1", "4",
                                                    "rank 0: L0 F0 L1 F1 L2 F2 L3 F3 B0 B1 B2 B3 S0 P0\n"
                                                    "rank 1: L0 F0 L1 F1 B0 B1 L2 F2 L3 F3 P0 B2 B3 S0\n")));
  const CostTable sizes = test::sizes_for(2);  // 60 bytes per boundary
  for (const auto& [rules, expected] : std::vector<std::pair<std::string, bool>>{{"rendezvous", false},
                                                                                 {"eager:60:60", false},
                                                                                 {"eager:60:119", false},
                                                                                 {"eager:60:120", true},
                                                                                 {"eager:59:120", false},
                                                                                 {"eager:60", true},
                                                                                 {"eager", true}}) {
    INFO(rules);
    CHECK(check(program, &sizes, std::nullopt, transport_rules(rules)).accepted() == expected);
    CHECK(test::interpret(program, 3, transport_rules(rules), &sizes).wrong.empty() == expected);
  }
}

TEST_CASE("without tags the order of sends must be the order of receives", "[transport_rules]") {
  // Rank 1 posts what it reads first, which rank 0 sends last.
  const auto program = lower(from_lines("0 1", "2",
                                        "rank 0: L0 F0 L1 F1 B0 B1 S0 P0\n"
                                        "rank 1: L0 F0 L1 F1 P0 B0 B1 S0\n"));
  LoweredProgram crossed = program;
  auto& list = crossed.ranks[1];
  std::vector<std::size_t> posts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].op == Op::post_receive) posts.push_back(i);
  }
  REQUIRE(posts.size() >= 2);
  std::swap(list[posts[0]], list[posts[1]]);
  CHECK(check(crossed).accepted());
  for (const char* rules : {"rendezvous,fifo", "eager,fifo", "nccl"}) {
    INFO(rules);
    CHECK(check(program, nullptr, std::nullopt, transport_rules(rules)).accepted());
    const std::string refused = refusal_of(check(crossed, nullptr, std::nullopt, transport_rules(rules)));
    CHECK(contains(refused, "matching: rank 0 ["));
    CHECK(contains(refused, "start send of activation 0 from stage 0 to stage 1 meets rank 1 ["));
    CHECK(contains(refused, "post receive of activation 1"));
    CHECK(test::interpret(crossed, 1, transport_rules(rules)) != test::interpret(program, 1));
  }
}

TEST_CASE("one communicator per pair of ranks: a receive that is posted early occupies it",
          "[transport_rules]") {
  const auto program =
      lower(find_schedule("1f1b").generate({.placement = Placement::straight(2), .group_sizes = {2}}));
  const std::string refused = refusal_of(check(program, nullptr, std::nullopt, transport_rules("nccl,pair")));
  INFO(refused);
  CHECK(contains(refused, "deadlock: ranks 0 and 1 launch operations on their channel in two orders"));
  CHECK(contains(refused, "rank 0's channel is at [0] post receive of gradient 0"));
  CHECK(contains(refused, "rank 1's channel is at [0] post receive of activation 0"));
  CHECK(test::interpret(program, 1, transport_rules("nccl,pair")).wrong == "deadlock");
  // Forwards alone go one way, but for the loss: over three ranks no pair has both directions.
  const auto forwards = lower(validation_program(Placement::straight(3), 4));
  CHECK(check(forwards, nullptr, std::nullopt, transport_rules("nccl,pair")).accepted());
  CHECK(test::interpret(forwards, 1, transport_rules("nccl,pair")).wrong.empty());
}

TEST_CASE("lowering posts in the order of sends where a channel carries several boundaries",
          "[transport_rules]") {
  // Rank 0 holds stages 0 and 2, rank 1 stages 1 and 3: two activation boundaries go from rank 0 to rank 1.
  int several = 0;
  for (const auto& where : test::odd_placements()) {
    for (const Schedule& schedule : schedules()) {
      const ScheduleRequest request{.placement = where, .group_sizes = {5}};
      if (!test::serves(schedule, request)) continue;
      const auto program = schedule.generate(request);
      for (const char* name :
           {"nccl", "rendezvous,fifo,payload", "rendezvous,fifo,pair", "eager,fifo,pair"}) {
        const TransportRules rules = transport_rules(name);
        const LoweredProgram lowered = lower(program, {.rules = rules});
        const Proof proof = check(lowered, nullptr, std::nullopt, rules);
        INFO(schedule.name << " under " << name << " " << refusal_of(proof));
        CHECK(proof.accepted());
        CHECK(test::interpret(lowered, 1, rules) == test::interpret(lower(program), 1));
        several += lowered == lower(program) ? 0 : 1;
      }
    }
  }
  CHECK(several > 0);
}

TEST_CASE("whether slots suffice is the same for the flow and for the graph of the lowered program",
          "[transport_rules]") {
  int finished = 0;
  int stuck = 0;
  CHECK(rc::check([&] {
    const ScheduleProgram program = random_program().program;
    const std::string name = *rc::gen::elementOf(test::all_rules());
    const TransportRules rules = transport_rules(name);
    const CostTable sizes = test::sizes_for(program.placement.stages());
    const LoweringOptions options{
        .sends_in_flight = *rc::gen::inRange(1, 3), .rules = rules, .costs = &sizes};
    const TransferScript script(program, options.sends_in_flight);
    const auto orders = post_orders(script, rules);
    NoClock run(script, rules, &sizes);
    SlotCounts counts;
    LoweringOptions chosen = options;
    for (std::size_t r = 0; r < script.ranks(); ++r) {
      counts.emplace_back();
      for (const Channel& channel : script.transfers(r).channels) {
        counts[r].push_back(*rc::gen::inRange(channel.held, channel.transfers + 1));
        chosen.channels.push_back({Rank{r}, channel.info, counts[r].back()});
      }
    }
    const bool finishes = run.run(orders, counts);
    try {
      RC_ASSERT(Dependencies(lower(program, chosen), rules, &sizes).acyclic() == finishes);
    } catch (const RefusedError&) {
      RC_ASSERT(!finishes);
    }
    ++(finishes ? finished : stuck);
  }));
  INFO(finished << " finish, " << stuck << " do not");
  CHECK(finished > 10);
}

TEST_CASE("what finishes under rendezvous finishes with eager and with launched sends", "[transport_rules]") {
  CHECK(rc::check([] {
    const LoweredProgram program = lower(random_program().program);
    const CostTable sizes = test::sizes_for(program.placement.stages());
    for (const char* name : {"eager", "eager:100", "eager:1000:150", "eager:1000:250,payload"}) {
      RC_ASSERT(Dependencies(program, transport_rules(name), &sizes).acyclic());
    }
    RC_ASSERT(Dependencies(program, TransportRules::nccl()).acyclic());
  }));
}

TEST_CASE("least slots of every channel: they work, and one fewer on any does not", "[transport_rules]") {
  int more_than_held = 0;
  CHECK(rc::check([&] {
    ScheduleProgram program = random_program().program;
    // In a list turned round a channel can need more slots than are read at once.
    for (auto& list : program.ranks) {
      if (*rc::gen::inRange(0, 3) > 0) continue;
      const auto from = *rc::gen::inRange<std::size_t>(0, list.size());
      std::reverse(list.begin() + static_cast<std::ptrdiff_t>(from), list.end());
    }
    LoweringOptions options;
    options.rules = transport_rules(*rc::gen::elementOf(test::all_rules()));
    const CostTable sizes = test::sizes_for(program.placement.stages());
    options.costs = &sizes;
    const auto least = least_channel_slots(program, options);
    RC_ASSERT(least.has_value() == least_slots(program, options).has_value());
    if (!least) return;
    const auto finishes = [&](const std::vector<ChannelSlots>& channels) {
      LoweringOptions chosen = options;
      chosen.channels = channels;
      try {
        return Dependencies(lower(program, chosen), options.rules, &sizes).acyclic();
      } catch (const RefusedError&) {
        return false;
      }
    };
    RC_ASSERT(finishes(least->channels));
    RC_ASSERT(least->uniform == least_slots(program, options));
    int total = 0;
    for (std::size_t c = 0; c < least->channels.size(); ++c) {
      auto fewer = least->channels;
      total += fewer[c].slots;
      RC_ASSERT(fewer[c].slots >= fewer[c].held);
      if (fewer[c].slots == fewer[c].held) continue;
      ++more_than_held;
      RC_ASSERT(!least->exact);
      --fewer[c].slots;
      RC_ASSERT(!finishes(fewer));
    }
    RC_ASSERT(least->total == total);
  }));
  INFO(more_than_held << " channels needed more than is read at once");
  CHECK(more_than_held > 0);
}

}  // namespace stagecraft
