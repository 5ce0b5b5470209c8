#pragma once

// Ranks as threads whose transport is NCCL's, on devices without a GPU (test/support/fake_device.h).

#include "stagecraft/engine/transport/nccl/nccl_transport.h"
#include "test/engine/delays.h"
#include "test/engine/pipeline_case.h"
#include "test/support/fake_device.h"
#include "test/support/ranks.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::test {

struct NcclRanks {
  TransportOptions options{.timeout = Seconds{30}};
  int most_streams = 31;
  std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();
  std::function<void(Rank, FakeDevice&)> prepare;  ///< a rank's device, on its thread; empty: nothing

  void run(int world, const transport::NcclWiring& wiring,
           const std::function<void(Transport&)>& body) const {
    run_ranks(world, options, [&](Transport& hosts) {
      const auto seed = static_cast<std::uint64_t>(hosts.rank().value) + 1;
      const auto device = std::make_shared<FakeDevice>(fabric, seed, most_streams);
      if (prepare) prepare(hosts.rank(), *device);
      transport::NcclTransport nccl(std::make_unique<DelayedTransport>(hosts, seed), device, device, wiring);
      try {
        body(nccl);
        nccl.barrier();  // a device that goes ends what its peers have under way
      } catch (const std::exception& error) {
        nccl.fail(error.what());
        throw;
      }
    });
  }
};

/// A case over NCCL, its ranks' outcomes. Throws RefusedError where NCCL cannot carry it.
inline std::vector<Outcome> run_over_nccl(const Setting& setting, const transport::NcclWiring& wiring) {
  (void)oracle_of(setting);  // before threads ask for it
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
  NcclRanks().run(setting.placement.world(), wiring,
                  [&](Transport& nccl) { outcomes[nccl.rank().index()] = run_rank(setting, nccl); });
  return outcomes;
}

}  // namespace stagecraft::test
