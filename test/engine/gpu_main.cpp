// Pipelines on GPUs that equal the oracle on the same kind of GPU to the bit, in deterministic mode. Every
// rank computes the oracle itself and judges its own layers.
//
//   test_gpu local [STRIDE [KIND]]                ranks are threads on one GPU, tensors go through the host
//   mpiexec -n N test_gpu staged [STRIDE [KIND]]  ranks are processes, tensors go through the host, or from
//   GPU
//                                                 to GPU where MPI takes their memory
//   mpiexec -n N test_gpu nccl [STRIDE [KIND]]    ranks are processes, GPUs exchange tensors by NCCL
//
//   test_gpu operators CALLS [free]               each operator of captured models, beside the CPU (operators_on_device.h);
//                                                 free: not in deterministic mode
//
// STRIDE: every so manieth case (default 97). KIND: graphs: what repeats is recorded, and something must be;
// replicas: of the cases whose stages have replicas. Where processes outnumber GPUs each passes for a host of
// its own (NCCL_HOSTID), since NCCL takes one rank per GPU and host; it goes over sockets then. Exit code 77:
// no GPU here.

#include "base/error.h"
#include "engine/device/accelerators.h"
#include "engine/device/graphs.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/transport/factory.h"
#include "engine/transport/mpi/mpi_session.h"
#include "test/engine/case_list.h"
#include "test/models/operators_on_device.h"
#include "test/support/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

constexpr int kNoGpu = 77;

using Wrap =
    std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> hosts, const Setting& setting)>;

RunConfig cuda_config() {
  RunConfig config;
  config.device = DeviceKind::cuda;
  config.cuda.deterministic = true;
  return config;
}

const TransportOptions kOptions{.timeout = Seconds{60}};

std::unique_ptr<Transport> over_nccl(std::unique_ptr<Transport> hosts, const Setting& setting) {
  return make_nccl_transport(std::move(hosts), setting.pipeline.device.index(), nccl_needs(setting));
}

std::unique_ptr<Transport> staged(std::unique_ptr<Transport> hosts, const Setting& setting) {
  if (hosts->world() == 1) return hosts;
  return make_transport_over_hosts(std::move(hosts), setting.pipeline.device.index());
}

/// What runs are made of besides their cases.
struct Runs {
  at::Device device;
  std::size_t stride = 97;
  bool graphs = false;
  bool replicas = false;
};

std::vector<PipelineCase> cases_of(int ranks, const Runs& runs) {
  std::vector<PipelineCase> cases = all_cases(ranks);
  for (const PipelineCase& tied : tied_cases(ranks)) cases.push_back(tied);
  if (runs.replicas) std::erase_if(cases, [](const PipelineCase& one) { return one.widths.empty(); });
  return cases;
}

bool run_it(PipelineCase pipeline, const Runs& runs, std::unique_ptr<Transport> hosts, const Wrap& wrap) {
  pipeline.device = runs.device;
  Setting setting(pipeline);
  if (runs.graphs) setting.options.graphs = make_device_graphs(runs.device.index());
  std::unique_ptr<Transport> transport;
  try {
    transport = wrap(std::move(hosts), setting);
  } catch (const RefusedError&) {  // the same everywhere
    return false;
  }
  const Outcome outcome = run_rank(setting, *transport);
  std::string found = difference(outcome, oracle_of(setting), transport->rank().value == 0);
  if (found.empty() && !outcome.graphs.refusal.empty()) found = "not recorded: " + outcome.graphs.refusal;
  if (!found.empty()) throw InternalError(found);
  transport->barrier();
  return true;
}

/// Throws where the run fails or differs from the oracle; false where the transport cannot carry it.
bool run_case(const PipelineCase& pipeline, const Runs& runs, std::unique_ptr<Transport> hosts,
              const Wrap& wrap) {
  try {
    return run_it(pipeline, runs, std::move(hosts), wrap);
  } catch (const std::exception& error) {
    throw InternalError(fmt::format("{}: {}", pipeline.name(), error.what()));
  }
}

void over_processes(MpiSession& session, const Runs& what, const Wrap& wrap) {
  const std::vector<PipelineCase> cases = cases_of(session.world(), what);
  int runs = 0;
  for (std::size_t i = static_cast<std::size_t>(session.world()); i < cases.size(); i += what.stride) {
    runs += run_case(cases[i], what, session.make_transport(kOptions), wrap) ? 1 : 0;
  }
  if (session.rank().value == 0) {
    fmt::print("{} runs over {} processes on {} equal the oracle to the bit\n", runs, session.world(),
               device_name(what.device));
  }
}

void over_threads(const Runs& what) {
  int runs = 0;
  for (const int ranks : {1, 2, 4}) {
    const std::vector<PipelineCase> cases = cases_of(ranks, what);
    for (std::size_t i = static_cast<std::size_t>(ranks); i < cases.size(); i += what.stride) {
      PipelineCase pipeline = cases[i];
      pipeline.device = what.device;
      const Setting setting(pipeline);
      (void)oracle_of(setting);  // before threads ask for it
      auto transports = make_local_transports(setting.placement.world(), kOptions);
      std::vector<std::exception_ptr> errors(transports.size());
      {
        std::vector<std::jthread> threads;
        for (std::size_t r = 0; r < transports.size(); ++r) {
          threads.emplace_back([&, r] {
            try {
              (void)run_case(cases[i], what, std::move(transports[r]), staged);
            } catch (...) {
              errors[r] = std::current_exception();
            }
          });
        }
      }
      for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
      }
      ++runs;
    }
  }
  fmt::print("{} runs of threads on {} equal the oracle to the bit\n", runs, device_name(what.device));
}

int over_operators(const at::Device& device, const std::string& calls) {
  const DeviceFindings found = compare_operators(device, calls);
  fmt::print(
      "{} calls of operators on {} beside the CPU: {} findings, {} results that lie otherwise, {} refused as "
      "they do "
      "not repeat, {} without a kernel for whole numbers\n",
      found.calls, device_name(device), found.findings, found.other_strides, found.not_repeatable,
      found.integers);
  return found.findings > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "local";
  const AcceleratorReport found = accelerators();
  if (found.devices.empty()) {
    fmt::print("skipped: {}\n", found.compiled_in ? found.remark : "this build is without CUDA");
    return kNoGpu;
  }
  at::set_num_threads(1);
  const LaunchInfo launch = detect_launch();
  const auto devices = static_cast<int>(found.devices.size());
  if (launch.machine_world > devices) {
    ::setenv("NCCL_HOSTID", fmt::format("stagecraft-{}", launch.rank).c_str(), /*overwrite=*/1);
  }
  RunConfig config = cuda_config();
  config.cuda.deterministic = argc < 4 || argv[3] != std::string("free");
  Runs runs{.device = prepare_device(config, "test_gpu", launch.machine_rank)};
  if (what == "operators") {
    if (argc < 3) {
      fmt::print(stderr, "test_gpu operators: where are the calls?\n");
      return 2;
    }
    return over_operators(runs.device, argv[2]);
  }
  if (argc > 2) runs.stride = std::stoul(argv[2]);
  runs.graphs = argc > 3 && argv[3] == std::string("graphs");
  runs.replicas = argc > 3 && argv[3] == std::string("replicas");
  if (what == "local") {
    try {
      over_threads(runs);
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      return 1;
    }
  }
  MpiSession session;
  try {
    over_processes(session, runs, what == "nccl" ? Wrap(over_nccl) : Wrap(staged));
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {} of {}: {}\n", session.rank().value, session.world(), error.what());
    session.abort(1);
  }
  return 0;
}
