#pragma once

// Ranks that torchrun started without Python: they have its store (c10d::Store), and no Gloo, whose headers LibTorch
// does not bring. Each rank has a queue in the store. Every byte goes through the process that holds the store, so
// this is for what is small: what ranks tell each other, beside tensors that NCCL carries.

#include "base/launch.h"
#include "engine/transport/c10d/wire.h"

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Store;
}  // namespace c10d

namespace stagecraft::transport {

/// Whether the environment names a store: MASTER_ADDR and MASTER_PORT.
[[nodiscard]] bool has_launcher_store(const Environment& environment = {});
/// Over it. Rank 0 opens it where torchrun's agent holds none (TORCHELASTIC_USE_AGENT_STORE). Collective. Throws
/// PeerError where it or another rank does not answer within `patience`, InputError for a port that is none.
[[nodiscard]] std::unique_ptr<Wire> make_launcher_wire(const LaunchInfo& launch, Seconds patience,
                                                       const Environment& environment = {});

/// A name that all ranks of this start share and no earlier start had, over a store that keeps what earlier ones
/// wrote. Collective. Throws PeerError where not all come within `patience`.
[[nodiscard]] std::string agreed_name(c10d::Store& store, Rank rank, int world, Seconds patience);

/// Over queues under `name`, which is this wire's alone. Its moves fail with PeerError once the store is gone.
/// `serves`: `store` holds it for all ranks, so the wire does not end before the others' have, or some seconds more.
[[nodiscard]] std::unique_ptr<Wire> make_store_wire(c10::intrusive_ptr<c10d::Store> store,
                                                    const std::string& name, Rank rank, int world,
                                                    bool serves = false);

}  // namespace stagecraft::transport
