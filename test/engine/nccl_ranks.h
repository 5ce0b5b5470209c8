#pragma once

// Ranks as threads whose transport is NCCL's, on devices without a GPU (test/support/fake_device.h).

#include "engine/transport/nccl/nccl_transport.h"
#include "test/engine/delays.h"
#include "test/engine/pipeline_case.h"
#include "test/support/fake_device.h"
#include "test/support/ranks.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// While the device's compute stream waits, the host polls its transfers.
class GoesOn {
 public:
  GoesOn(FakeDevice& device, Transport& transport) : device_(device) {
    device.set_meanwhile([&transport] { transport.progress(); });
  }
  ~GoesOn() { device_.set_meanwhile(nullptr); }
  GoesOn(const GoesOn&) = delete;
  GoesOn& operator=(const GoesOn&) = delete;

 private:
  FakeDevice& device_;
};

/// A transport whose host does something between layers.
class WaitsForDevice final : public DelayedTransport {
 public:
  WaitsForDevice(Transport& inner, std::function<void()> between)
      : DelayedTransport(inner, 1), between_(std::move(between)) {}
  void progress() override {
    between_();
    DelayedTransport::progress();
  }

 private:
  std::function<void()> between_;
};

struct NcclRanks {
  TransportOptions options{.timeout = Seconds{30}};
  int most_streams = 31;
  std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();
  /// Runs the ranks, each with what hosts talk over.
  std::function<void(int, const TransportOptions&, const std::function<void(Transport&)>&)> run_hosts =
      run_ranks;
  std::function<void(Rank, FakeDevice&)> prepare;  ///< a rank's device, on its thread; empty: nothing
  /// Whether the rank's host waits for its whole device, asked whenever it looks at transfers in its work;
  /// empty: never.
  std::function<bool(Rank)> wait_for_device;

  void run(int world, const transport::NcclWiring& wiring,
           const std::function<void(Transport&)>& body) const {
    run_hosts(world, options, [&](Transport& hosts) {
      const auto seed = static_cast<std::uint64_t>(hosts.rank().value) + 1;
      const auto device = std::make_shared<FakeDevice>(fabric, seed, most_streams);
      if (prepare) prepare(hosts.rank(), *device);
      transport::NcclTransport nccl(std::make_unique<DelayedTransport>(hosts, seed), device, device, wiring);
      const GoesOn host_goes_on(*device, nccl);
      try {
        if (wait_for_device) {
          WaitsForDevice waits(nccl, [&] {
            if (wait_for_device(hosts.rank())) device->synchronize(Seconds{5});
          });
          body(waits);
        } else {
          body(nccl);
        }
        nccl.barrier();  // a device that goes ends what its peers have under way
      } catch (const std::exception& error) {
        nccl.fail(error.what());
        throw;
      }
    });
  }
};

/// A case over NCCL, its ranks' outcomes. Throws RefusedError where NCCL cannot carry it.
inline std::vector<Outcome> run_over_nccl(const Setting& setting, const transport::NcclWiring& wiring,
                                          const NcclRanks& runner = {}) {
  (void)oracle_of(setting);  // before threads ask for it
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
  runner.run(setting.placement.world(), wiring,
             [&](Transport& nccl) { outcomes[nccl.rank().index()] = run_rank(setting, nccl); });
  return outcomes;
}

}  // namespace stagecraft::test
