#include "base/error.h"
#include "base/files.h"
#include "engine/transport/c10d/first_line.h"
#include "engine/transport/c10d/store_wire.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

namespace stagecraft::transport {
namespace {

using Clock = std::chrono::steady_clock;

std::string variable(const Environment& environment, const char* name) {
  const char* const text = environment ? environment(name) : std::getenv(name);
  return text == nullptr ? "" : text;
}

// What ranks write to meet.
std::string call_of(int rank) { return fmt::format("stagecraft/meeting/call/{}", rank); }
std::string answer_to(int rank) { return fmt::format("stagecraft/meeting/answer/{}", rank); }
std::string confirmed_by(int rank) { return fmt::format("stagecraft/meeting/confirmed/{}", rank); }

/// "" where it was never written.
std::string read(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return "";
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void write(c10d::Store& store, const std::string& key, std::string_view text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

void pause(Clock::time_point until, int missing) {
  constexpr std::chrono::milliseconds kPeriod{5};
  if (Clock::now() > until) {
    throw PeerError(
        fmt::format("rank {} does not come: its process has not started, or ended at once", missing));
  }
  std::this_thread::sleep_for(kPeriod);
}

/// c10d logs stacks beside what it throws. What is thrown here becomes one line.
void keep_c10d_quiet(const Environment& environment) {
  constexpr int kFatal = 3;
  if (variable(environment, "TORCH_CPP_LOG_LEVEL").empty()) FLAGS_caffe2_log_level = kFatal;
}

/// Whether this rank holds the store.
bool serves(const LaunchInfo& launch, const Environment& environment) {
  return launch.rank == 0 && variable(environment, "TORCHELASTIC_USE_AGENT_STORE") != "True";
}

c10::intrusive_ptr<c10d::Store> launcher_store(const LaunchInfo& launch, Seconds patience,
                                               const Environment& environment) {
  const std::string host = variable(environment, "MASTER_ADDR");
  const std::string port = variable(environment, "MASTER_PORT");
  c10d::TCPStoreOptions options;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), options.port);
  if (error != std::errc() || end != port.data() + port.size() || options.port == 0)
    throw InputError(fmt::format("MASTER_PORT is \"{}\"; expected the port of torchrun's store", port));
  keep_c10d_quiet(environment);
  options.isServer = serves(launch, environment);
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(patience.value * 1e3));
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& failure) {
    throw PeerError(
        fmt::format("torchrun's store at {}:{} does not answer: {}", host, port, first_line(failure)));
  }
}

}  // namespace

bool has_launcher_store(const Environment& environment) {
  return !variable(environment, "MASTER_ADDR").empty() && !variable(environment, "MASTER_PORT").empty();
}

std::unique_ptr<Wire> make_launcher_wire(const LaunchInfo& launch, Seconds patience,
                                         const Environment& environment) {
  const auto store = launcher_store(launch, patience, environment);
  const Rank rank{launch.rank};
  const std::string name = agreed_name(*store, rank, launch.world, patience);
  return make_store_wire(store, name, rank, launch.world, serves(launch, environment));
}

std::string agreed_name(c10d::Store& store, Rank rank, int world, Seconds patience) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(patience.value));
  // Rank 0 chooses the name, and answers each rank's call with it. What it answers may be an old call, and what a
  // rank reads an old answer: so an answer repeats its call, and a rank confirms.
  if (rank.value != 0) {
    const std::string call = unique_name("call");
    write(store, call_of(rank.value), call);
    while (true) {
      const std::string said = read(store, answer_to(rank.value));
      if (said.starts_with(call + " ")) {
        const std::string name = said.substr(call.size() + 1);
        write(store, confirmed_by(rank.value), name);
        return name;
      }
      pause(until, 0);
    }
  }
  const std::string name = unique_name("stagecraft/start");
  std::map<int, std::string> waiting;  // for these ranks to confirm, who were answered so far to such a call
  for (int r = 1; r < world; ++r) waiting[r] = "";
  while (!waiting.empty()) {
    for (auto& [each, answered] : waiting) {
      const std::string call = read(store, call_of(each));
      if (call == answered) continue;
      write(store, answer_to(each), fmt::format("{} {}", call, name));
      answered = call;
    }
    std::erase_if(waiting, [&](const auto& one) { return read(store, confirmed_by(one.first)) == name; });
    if (!waiting.empty()) pause(until, waiting.begin()->first);
  }
  return name;
}

}  // namespace stagecraft::transport
