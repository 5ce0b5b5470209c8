// `stagecraft doctor`: what was compiled in, what this machine has, what a run here would use.

#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/process_facts.h"
#include "engine/transport/mpi/mpi_library.h"
#include "models/tensors/matrix_products.h"

#include <ATen/Version.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::cli {
namespace {

/// Null where there is none.
const MpiLibrary* mpi_of_this_machine(std::string& remark) {
  try {
    return &mpi_library();
  } catch (const InputError& error) {
    remark = error.what();
    return nullptr;
  }
}

Json report() {
  const AcceleratorReport found = accelerators();
  const ProcessFacts process = process_facts();
  std::string no_mpi;
  const MpiLibrary* const mpi = mpi_of_this_machine(no_mpi);
  Json json;
  json["stagecraft"] = STAGECRAFT_VERSION;
  json["compiler"] = fmt::format("g++ {}", __VERSION__);
  json["libtorch"] = TORCH_VERSION;
  json["cpu_capability"] = at::get_cpu_capability();
  json["slow_bfloat16"] = slow_bfloat16();
  Json& products = json["matrix_products_gflops"];
  const ProductRates rates = measure_products();
  products["blas"] = rates.blas / 1e9;
  products["onednn"] = rates.onednn > 0 ? Json(rates.onednn / 1e9) : Json();
  json["cores"] = process.cores.machine;
  json["usable_cores"] = process.cores.usable;
  json["bound_to"] = process.bound_to;
  json["rank"] = process.launch.rank;
  json["ranks_on_this_machine"] = process.launch.machine_world;
  json["ranks_outnumber_cores"] = process.crowded;
  if (process.launch.launched()) {
    json["launched_by"] = process.launch.variable;
    const std::optional<Seconds> kill_after = mpi != nullptr ? mpi->kill_timeout() : std::nullopt;
    json["mpirun_kills_after_s"] = kill_after ? Json(kill_after->value) : Json();
    json["stopping"] = how_to_stop(process.launch, kill_after);
  }
  json["threads_a_rank"] = process.threads;
  json["page_faults_of_a_used_block"] = process.faults_again;
  json["pages_of_a_block"] = process.block_pages;
  json["mpi"] = mpi != nullptr ? Json(mpi->version()) : Json();
  json["mpi_remark"] = no_mpi;
  json["mpi_built_for_cuda"] = mpi != nullptr && mpi->built_for_cuda();
  json["transports"] = Json::array({"local", "c10d"});
  if (mpi != nullptr) json["transports"].push_back("mpi");
  if (found.compiled_in) json["transports"].push_back("nccl");
  Json& cuda = json["cuda"];
  cuda["compiled_in"] = found.compiled_in;
  cuda["runtime"] = found.cuda_runtime;
  cuda["driver"] = found.cuda_driver;
  cuda["driver_release"] = found.driver;
  cuda["nccl_header"] = found.nccl_header;
  cuda["nccl_runtime"] = found.nccl_runtime;
  cuda["remark"] = found.remark;
  cuda["devices"] = Json::array();
  for (const Accelerator& device : found.devices) {
    cuda["devices"].push_back({{"name", device.name},
                               {"memory_bytes", device.memory.value},
                               {"compute_capability", device.compute_capability},
                               {"pci_address", device.pci_address},
                               {"numa_node", device.numa_node},
                               {"peers", device.peers}});
  }
  return json;
}

std::string rank_text(const Json& json) {
  const auto bound = json["bound_to"].get<std::vector<int>>();
  const int ranks = json["ranks_on_this_machine"].get<int>();
  return fmt::format(
      "{} of {} on this machine, {} core{} {}{}", json["rank"].get<int>(), ranks,
      bound.size() < json["cores"].get<std::size_t>() ? "bound to" : "free to use",
      bound.size() == 1 ? "" : "s", fmt::join(bound, ","),
      json["ranks_outnumber_cores"].get<bool>() ? "; more ranks than cores: waits give way" : "");
}

std::string gpu_text(const Json& device) {
  const auto peers = device["peers"].get<std::vector<int>>();
  const int node = device["numa_node"].get<int>();
  return fmt::format("{}, {}, compute capability {}, PCI {}{}{}", device["name"].get<std::string>(),
                     format_bytes(Bytes{device["memory_bytes"].get<std::int64_t>()}),
                     device["compute_capability"].get<std::string>(),
                     device["pci_address"].get<std::string>(),
                     node < 0 ? "" : fmt::format(", NUMA node {}", node),
                     peers.empty() ? "" : fmt::format(", direct access to {}", fmt::join(peers, ",")));
}

/// Of float32 matrices on one thread, and what to set where it pays.
std::string products_text(const Json& gflops) {
  const double blas = gflops["blas"].get<double>();
  if (gflops["onednn"].is_null()) return fmt::format("{:.0f} GFLOP/s per core", blas);
  const double onednn = gflops["onednn"].get<double>();
  constexpr double kPays = 1.1;
  return fmt::format("{:.0f} GFLOP/s per core with blas, {:.0f} with onednn{}", blas, onednn,
                     onednn < kPays * blas ? "" : R"(; "matrix_products": "onednn" is faster here)");
}

std::string mpi_text(const Json& json) {
  if (json["mpi"].is_null()) return json["mpi_remark"].get<std::string>();
  return json["mpi"].get<std::string>() +
         (json["mpi_built_for_cuda"].get<bool>()
              ? ", built to take GPU memory; a run asks again"
              : ", built for host memory: tensors of GPUs are copied through it");
}

std::string people(const Json& json) {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("  {:<12} {}\n", name, value);
  };
  const auto text = [&](const Json& value) { return value.get<std::string>(); };
  line("stagecraft", text(json["stagecraft"]));
  line("compiler", text(json["compiler"]));
  line("LibTorch", fmt::format("{}, {} kernels", text(json["libtorch"]), text(json["cpu_capability"])));
  if (const std::string slow = text(json["slow_bfloat16"]); !slow.empty()) line("bf16", slow);
  line("products", products_text(json["matrix_products_gflops"]));
  line("cores", fmt::format("{} usable of {}", json["usable_cores"].get<int>(), json["cores"].get<int>()));
  line("rank", rank_text(json));
  if (json.contains("stopping")) {
    const std::string how = text(json["stopping"]);
    line("stopping", how.substr(how.find(": ") + 2, how.find_last_not_of('\n') - how.find(": ") - 1));
  }
  line("threads",
       fmt::format("{} per rank, unless the config says otherwise", json["threads_a_rank"].get<int>()));
  line("memory",
       fmt::format("a freed block of {} pages used again: {:.0f} page faults{}",
                   json["pages_of_a_block"].get<int>(), json["page_faults_of_a_used_block"].get<double>(),
                   json["page_faults_of_a_used_block"].get<double>() < 1
                       ? ""
                       : "; it should be 0 (MALLOC_ variables?)"));
  line("MPI", mpi_text(json));
  line("transports", fmt::format("{}", fmt::join(json["transports"].get<std::vector<std::string>>(), ", ")));
  const Json& cuda = json["cuda"];
  if (!cuda["compiled_in"].get<bool>()) {
    line("CUDA", text(cuda["remark"]));
    return out;
  }
  const std::string release = text(cuda["driver_release"]);
  line("CUDA", fmt::format("runtime {}, {}", text(cuda["runtime"]),
                           release.empty() ? "no driver"
                                           : fmt::format("driver {} for {}", release, text(cuda["driver"]))));
  line("NCCL", fmt::format("header {}, loaded {}", text(cuda["nccl_header"]), text(cuda["nccl_runtime"])));
  for (const Json& device : cuda["devices"]) {
    line("GPU", gpu_text(device));
  }
  if (cuda["devices"].empty()) line("GPU", "none: " + text(cuda["remark"]));
  return out;
}

}  // namespace

void add_doctor(CLI::App& app) {
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* verb =
      app.add_subcommand("doctor", "show versions, cores, transports and devices, as this build sees them");
  verb->add_flag("--json", *as_json, "one JSON document instead of text")->group("Output");
  verb->callback([as_json] {
    const Json json = report();
    if (*as_json) {
      print_json(json);
    } else {
      print(people(json));
    }
  });
}

}  // namespace stagecraft::cli
