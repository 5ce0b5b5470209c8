// What ranks wait for between two steps of a run: nothing that is not in the program.

#include "base/json.h"
#include "engine/run/start/prepare.h"
#include "engine/run/train/trainer.h"
#include "engine/transport/factory.h"
#include "test/engine/delays.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace stagecraft::test {
namespace {

struct Counts {
  explicit Counts(int world) : asked(static_cast<std::size_t>(world)) {}
  std::vector<std::atomic<int>> asked;  ///< agreements that each rank began
  std::atomic<int> meetings = 0;        ///< collectives, and agreements heard as soon as they are begun
  std::atomic<int> steady = 0;          ///< agreements heard behind transfers
  std::atomic<int> early = 0;           ///< of these, before all ranks had begun them
};

class CountingTransport final : public DelayedTransport {
 public:
  CountingTransport(Transport& inner, Counts& counts) : DelayedTransport(inner, 1), counts_(counts) {}
  void barrier() override {
    ++counts_.meetings;
    DelayedTransport::barrier();
  }
  std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    ++counts_.meetings;
    return DelayedTransport::all_gather(mine);
  }
  std::vector<std::string> all_gather_text(const std::string& mine) override {
    ++counts_.meetings;
    return DelayedTransport::all_gather_text(mine);
  }
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override {
    ++counts_.meetings;
    DelayedTransport::gather_text(to, mine, take);
  }
  std::string broadcast(const std::string& text) override {
    ++counts_.meetings;
    return DelayedTransport::broadcast(text);
  }
  void begin_agreement(int mine) override {
    ++counts_.asked[rank().index()];
    moved_ = false;
    DelayedTransport::begin_agreement(mine);
  }
  RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    moved_ = true;
    return DelayedTransport::post_receive(from, tag, into);
  }
  int finish_agreement() override {
    ++heard_;
    ++(moved_ ? counts_.steady : counts_.meetings);
    const bool all = std::ranges::all_of(counts_.asked, [&](const auto& asked) { return asked >= heard_; });
    if (moved_ && !all) ++counts_.early;
    return DelayedTransport::finish_agreement();
  }

 private:
  Counts& counts_;
  int heard_ = 0;
  bool moved_ = false;  ///< since the last agreement was begun
};

struct Counted {
  int meetings;  ///< of a rank: `auto` places stages by times that it measures, on fewer ranks or more
  int steady, early;
};

Counted waits_of(Json config, int steps) {
  const ScratchFolder folder;
  config["run_dir"] = folder.path("run");
  config["train_steps"] = steps;
  TrainRequest request;
  request.config = folder.write("run.json", config.dump());
  const Prepared prepared =
      prepare(request, read_run_config(request.config, {}), std::nullopt, [](const RunPaths&) {});
  const RunSetup& setup = *prepared.setup;
  const RunPaths paths{folder.path("run")};
  (void)write_run_files(paths, setup);
  auto transports = make_local_transports(setup.world(), {});
  Counts counts(setup.world());
  std::vector<std::thread> ranks;
  for (auto& transport : transports) {
    ranks.emplace_back([&] {
      CountingTransport counting(*transport, counts);
      RankPhase doing;
      const Print unheard = [](const std::string&) {};
      (void)train_rank(setup, paths, counting, at::kCPU, {unheard, {}}, doing,
                       [](const std::string&, const std::exception_ptr&) {});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {counts.meetings / setup.world(), counts.steady, counts.early};
}

/// Nothing but equal training steps, which agree on nothing.
Json steady_config() {
  Json config = tiny_config();
  config["gradient_norm"] = false;
  config["data"]["samples"] = 160;
  config["data"]["validation_samples"] = 0;
  config["checkpoint"]["every_steps"] = 0;
  return config;
}

}  // namespace

TEST_CASE("a steady step waits for nothing that is not in its program", "[steady_steps]") {
  Json config = steady_config();
  config["model"]["hidden"] = {16, 12, 12, 12, 12, 12};
  SECTION("1f1b") { config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2, 4, 6}}}; }
  SECTION("zb_h2") { config["pipeline"] = {{"schedule", "zb_h2"}, {"cuts", {2, 4, 6}}}; }
  SECTION("zb_v") { config["pipeline"] = {{"schedule", "zb_v"}, {"cuts", {2, 4, 6}}}; }
  SECTION("auto") { config["pipeline"] = {{"schedule", "auto"}, {"cuts", {2, 4, 6}}}; }
  SECTION("interleaved_1f1b") {
    config["pipeline"] = {{"schedule", "interleaved_1f1b"}, {"cuts", {2, 4, 6}}};
  }
  SECTION("replicas") { config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}, {"widths", {2, 1}}}; }
  SECTION("replicas of the last stage") {
    config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}, {"widths", {1, 2}}};
  }
  const Counted few = waits_of(config, 4);
  const Counted many = waits_of(config, 12);
  CHECK(many.steady > few.steady);  // signals are agreed on all the same
  CHECK(few.early + many.early == 0);
  CHECK(many.meetings == few.meetings);
}

TEST_CASE("where a step is not proved together with the next one, ranks wait behind it", "[steady_steps]") {
  Json config = steady_config();
  config["train_micro_batch_size_per_gpu"] = 16;  // two micro-batches over three replicas
  config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}, {"widths", {1, 3}}};
  CHECK_NOTHROW(waits_of(config, 3));
}

}  // namespace stagecraft::test
