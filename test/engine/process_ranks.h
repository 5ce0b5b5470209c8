#pragma once

// What ranks that are processes of their own go through, over whatever transport. All throw std::runtime_error
// where a promise is broken.

#include "engine/transport/transport.h"
#include "test/engine/case_list.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace stagecraft::test {

using MakeTransport = std::function<std::unique_ptr<Transport>(const TransportOptions&)>;

/// What transport.h promises, with and without synchronous sends.
void processes_keep_the_contract(const MakeTransport& make);
/// Every `stride`-th case equals the oracle to the bit, which each rank computes itself for its own layers; the first
/// is that of the world's number, but where all are run.
void processes_equal_the_oracle(Transport& transport, const std::vector<PipelineCase>& cases,
                                std::size_t stride);

}  // namespace stagecraft::test
