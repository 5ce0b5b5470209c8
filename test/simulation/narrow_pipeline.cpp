#include "base/draws.h"
#include "base/failure.h"
#include "engine/transport/c10d/c10d_session.h"
#include "test/engine/case_list.h"
#include "test/simulation/narrow_transports.h"
#include "test/simulation/process.h"
#include "test/simulation/trial.h"
#include "test/support/fake_wire.h"
#include "test/support/ranks.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

namespace stagecraft::test {
namespace {

using schedule::kSecond;

constexpr Seconds kTimeout{30};
constexpr int kWrongBits = 50, kNotHeard = 51;
constexpr std::int32_t kNearTheEnd = std::numeric_limits<std::int32_t>::max() - 10'000;

/// A rank that ends without a word.
struct Death {
  int rank = 0;
  std::int64_t call = 0;
};

struct NarrowCase {
  PipelineCase pipeline;
  bool over_c10d = false;
  std::size_t text_piece = 1;
  std::optional<Death> death{};
};

std::vector<PipelineCase> small_cases() {
  std::vector<PipelineCase> small;
  for (const int ranks : {2, 3, 4}) {
    for (const PipelineCase& one : all_cases(ranks)) {
      if (one.model == ModelKind::mlp || one.model == ModelKind::convnet) small.push_back(one);
    }
  }
  return small;
}

NarrowCase any_case(Draws& draws) {
  static const std::vector<PipelineCase> cases = small_cases();
  NarrowCase given{.pipeline = cases[draws.below(cases.size())]};
  given.pipeline.delay_seed = draws.next() % 1000;
  given.over_c10d = draws.below(2) == 0;
  given.text_piece = static_cast<std::size_t>(draws.between(1, 64));
  if (given.over_c10d && draws.below(3) == 0) given.death = Death{0, draws.between(0, 200)};
  return given;
}

struct Dead : std::exception {};

/// What became of each rank.
struct Ranks {
  explicit Ranks(int world) : outcomes(static_cast<std::size_t>(world)), errors(outcomes.size()) {}
  std::vector<Outcome> outcomes;
  std::vector<std::exception_ptr> errors;
  bool died = false;  ///< a rank
};

void run_narrow(const Setting& setting, Ranks& ranks) {
  run_ranks(setting.placement.world(), {.timeout = kTimeout, .synchronous_sends = true},
            [&](Transport& inner) {
              NarrowTags transport(inner, kNearTheEnd);
              ranks.outcomes[inner.rank().index()] = run_rank(setting, transport);
            });
}

void run_c10d_rank(const Setting& setting, const NarrowCase& given, FakeGroup& group, Rank me, Ranks& ranks) {
  C10dSession session(group.wire(me), kTimeout);
  const auto inner = session.make_transport({.timeout = kTimeout, .text_piece = given.text_piece});
  const bool dies = given.death && given.death->rank == me.value;
  DyingTransport transport(*inner, dies ? given.death->call : -1, [&] {
    group.cut_off(me);
    ranks.died = true;
    throw Dead();
  });
  try {
    ranks.outcomes[me.index()] = run_rank(setting, transport);
    (void)transport.broadcast(std::string(300, 'x'));  // in pieces
  } catch (const std::exception& error) {
    inner->fail(error.what());
    throw;
  }
}

void run_c10d(const Setting& setting, const NarrowCase& given, Ranks& ranks) {
  FakeGroup group(setting.placement.world());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.errors.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        run_c10d_rank(setting, given, group, Rank{static_cast<std::int32_t>(r)}, ranks);
      } catch (...) {
        ranks.errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The exit code of the process whose threads are the ranks.
int run_case(const Setting& setting, const NarrowCase& given, const OracleResult& oracle, std::string& said) {
  Ranks ranks(setting.placement.world());
  try {
    given.over_c10d ? run_c10d(setting, given, ranks) : run_narrow(setting, ranks);
  } catch (const std::exception& error) {
    said = error.what();
    return kWrongBits;
  }
  if (!ranks.died) {
    for (const std::exception_ptr& error : ranks.errors) {
      if (!error) continue;
      said = failure_of(error).message;
      return kWrongBits;
    }
    said = difference(ranks.outcomes, oracle);
    return said.empty() ? 0 : kWrongBits;
  }
  for (std::size_t r = 0; r < ranks.errors.size(); ++r) {
    if (!ranks.errors[r] || static_cast<int>(r) == given.death->rank)
      continue;  // it had ended before, or died
    const Failure failure = failure_of(ranks.errors[r]);
    said = fmt::format("rank {}: {}", r, failure.message);
    if (failure.code != exit_code::kPeer) return kNotHeard;
  }
  return 0;
}

}  // namespace

Trial narrow_pipeline(std::uint64_t seed) {
  Draws draws(mix(seed));
  NarrowCase given = any_case(draws);
  const Setting setting(given.pipeline);
  if (given.death) given.death->rank = static_cast<int>(draws.below(to_size(setting.placement.world())));
  const OracleResult& oracle = oracle_of(setting);
  const std::string name =
      fmt::format("{}, {}{}", given.pipeline.name(), given.over_c10d ? "c10d" : "narrow tags",
                  given.death ? fmt::format(", rank {} dies", given.death->rank) : "");
  auto disk = std::make_unique<SimulatedDisk>();
  const Ended ended = run_process(disk, draws.next(), {}, [&](SimulatedDisk&, std::string& said) {
    return run_case(setting, given, oracle, said);
  });
  if (ended.code != 0) {
    throw Wrong(fmt::format("{}: it ends with {}: {}\n{}", name, ended.code, ended.said, ended.errors));
  }
  Trial trial{.name = given.over_c10d ? "pipeline, c10d" : "pipeline, narrow tags"};
  trial.trace = ended.counts.trace;
  ++trial.seen["pipelines"];
  if (given.death) ++trial.seen["deaths"];
  return trial;
}

}  // namespace stagecraft::test
