#include "engine/run/resolve/process_facts.h"

#include "engine/transport/cores.h"
#include "models/tensors/counting_allocator.h"

#include <ATen/ops/full.h>

#include <sys/resource.h>
#include <unistd.h>

namespace stagecraft {
namespace {

constexpr std::int64_t kActivationBytes = 4 << 20;
constexpr int kRounds = 16;

std::int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// Asks for two blocks, fills them and frees them: one round of what micro-batches do.
void use_activations() {
  const at::Tensor first = at::full({kActivationBytes}, 1, at::kByte);
  const at::Tensor second = at::full({kActivationBytes}, 1, at::kByte);
}

}  // namespace

ProcessFacts process_facts() {
  install_counting_allocator();
  ProcessFacts facts;
  facts.launch = detect_launch();
  facts.cores = transport::count_cores();
  facts.bound_to = transport::bound_cores();
  facts.threads = threads_per_rank(facts.cores, 1, facts.launch.machine_world);
  facts.crowded = facts.launch.machine_world > facts.cores.machine;
  facts.block_pages = kActivationBytes / sysconf(_SC_PAGESIZE);
  // At first they do fault, longer than once: an aligned block does not fit into the hole an equal one left,
  // until the splinters between holes, which glibc keeps apart a few at a time, are merged with them.
  for (int round = 0; round < kRounds; ++round) use_activations();
  const std::int64_t before = minor_faults();
  for (int round = 0; round < kRounds; ++round) use_activations();
  facts.faults_again = static_cast<double>(minor_faults() - before) / (2 * kRounds);
  return facts;
}

}  // namespace stagecraft
