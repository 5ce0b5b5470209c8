#pragma once

// What the transports of devices over a transport of the hosts promise alike: staged and direct.

#include "base/error.h"
#include "test/engine/case_list.h"
#include "test/engine/transport_contract.h"
#include "test/support/catch.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace stagecraft::test {

/// Runs `body` on so many ranks, each with the transport; rethrows what a rank threw.
using OnRanks = std::function<void(int world, const TransportOptions& options,
                                   const std::function<void(Transport&)>& body)>;

inline void keeps_the_contract(const OnRanks& on_ranks, int world) {
  const TransportOptions options{.timeout = Seconds{30}};
  for (const auto& promise : {tags_match, equal_tags_keep_their_order, transfers_progress, collectives_agree,
                              posted_sends_do_not_block}) {
    REQUIRE_NOTHROW(on_ranks(world, options, promise));
  }
  if (world > 1) REQUIRE_NOTHROW(on_ranks(world, options, background_work_goes_on));
  REQUIRE_NOTHROW(on_ranks(world, options, [](Transport& transport) {
    large_messages_arrive(transport, std::int64_t{8} << 20U);
  }));
}

inline void runs_equal_the_oracle(const OnRanks& on_ranks, const std::string& name) {
  int runs = 0;
  for (const PipelineCase& pipeline : covering(Cover::values, std::vector{2, 3, 4})) {
    INFO(pipeline.name());
    const Setting setting(pipeline);
    const OracleResult& oracle = oracle_of(setting);
    std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
    on_ranks(setting.placement.world(), {.timeout = Seconds{60}}, [&](Transport& transport) {
      outcomes[transport.rank().index()] = run_rank(setting, transport);
    });
    CHECK(difference(outcomes, oracle) == "");
    ++runs;
  }
  std::cout << fmt::format("{} runs over the {} transport compared with the oracle\n", runs, name);
}

inline void an_unanswered_transfer_is_named(const OnRanks& on_ranks) {
  const Tag tag{.payload = Payload::activation, .from = StageId{0}, .to = StageId{1}, .number = 7};
  std::string heard;
  CHECK_THROWS_AS(on_ranks(2, {.timeout = Seconds{0.3}},
                           [&](Transport& transport) {
                             if (transport.rank().value == 1) {
                               while (true) transport.progress();  // until it hears of rank 0
                             }
                             const at::Tensor tensor = at::zeros({4});
                             const RequestPtr receive = transport.post_receive(Rank{1}, tag, tensor);
                             try {
                               transport.wait(*receive);
                             } catch (const PeerError& error) {
                               heard = error.what();
                               throw;
                             }
                           }),
                  PeerError);
  INFO(heard);
  for (const char* part : {"rank 0: receive of activation 7", "from rank 1", "after 0.3 s"}) {
    CHECK(heard.find(part) != std::string::npos);
  }
}

}  // namespace stagecraft::test
