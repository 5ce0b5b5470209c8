#include "test/engine/process_ranks.h"

#include "test/engine/transport_contract.h"
#include "test/support/demand.h"

#include <fmt/format.h>

#include <string>

namespace stagecraft::test {

void processes_keep_the_contract(const MakeTransport& make) {
  for (const bool synchronous : {false, true}) {
    const auto transport =
        make({.timeout = Seconds{60}, .synchronous_sends = synchronous, .text_piece = 1000});
    collectives_agree(*transport);
    agreements_come_late(*transport);
    texts_are_gathered(*transport);
    // With ranks in a ring that all send first, only posted receives let synchronous sends return.
    tags_match(*transport);
    equal_tags_keep_their_order(*transport);
    transfers_progress(*transport);
    large_messages_arrive(*transport, std::int64_t{64} << 20U);
    if (synchronous && transport->world() >= 2) synchronous_sends_block(*transport);
    posted_sends_do_not_block(*transport);
    if (transport->world() >= 2) background_work_goes_on(*transport);
    transport->barrier();
  }
  const auto transport =
      make({.timeout = Seconds{0.7}, .start_up_timeout = Seconds{60}, .save_timeout = Seconds{60}});
  transport->waits().enter(Phase::start_up);
  transport->barrier();  // ranks come here when they come
  transport->waits().enter(Phase::step);
  phases_have_bounds(*transport);
}

void processes_equal_the_oracle(Transport& transport, const std::vector<PipelineCase>& cases,
                                std::size_t stride) {
  std::size_t runs = 0;
  for (std::size_t i = stride == 1 ? 0 : static_cast<std::size_t>(transport.world()); i < cases.size();
       i += stride) {
    const Setting setting(cases[i]);
    const Outcome outcome = run_rank(setting, transport);
    const std::string found = difference(outcome, oracle_of(setting), transport.rank().value == 0);
    demand(found.empty(), fmt::format("{}: {}", cases[i].name(), found));
    ++runs;
  }
  transport.barrier();
  if (transport.rank().value == 0) {
    fmt::print("{} runs over {} ranks of {} compared with the oracle\n", runs, transport.world(),
               transport.name());
  }
}

}  // namespace stagecraft::test
