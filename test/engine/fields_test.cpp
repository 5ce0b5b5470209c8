// Whole runs of a captured model that reads a padding mask on several stages, with the loss that it brings.

#include "base/json.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/save/run_dir.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>

namespace stagecraft::test {
namespace {

/// 48 samples in batches of 12, the third micro-batch of the first step being all padding.
Json masked_config(const std::string& data = STAGECRAFT_TEST_DATA "/captured/masked.safetensors") {
  return {
      {"model", {{"family", "captured"}, {"path", STAGECRAFT_CAPTURED_MODELS "/masked"}}},
      {"data",
       {{"type", "arrays"}, {"path", data}, {"validation_path", data}, {"inputs", "x"}, {"shuffle", false}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
      {"train_batch_size", 12},
      {"train_micro_batch_size_per_gpu", 2},
      {"train_steps", 4},
      {"threads_per_rank", 1},
      {"pipeline", {{"schedule", "1f1b"}, {"cuts", {2, 4, 7}}}}};
}

std::vector<MetricsRecord> metrics_of(const Json& config) {
  const Run run(config);
  (void)run.train();
  return run.metrics();
}

}  // namespace

TEST_CASE("stages that read fields make no difference: the metrics are those of one stage to the bit",
          "[fields]") {
  Json config = masked_config();
  config["pipeline"] = {{"schedule", "1f1b"}, {"stages", 1}};
  const std::vector<MetricsRecord> one = metrics_of(config);
  REQUIRE(one.size() == 5);
  CHECK(one[3].loss < one[0].loss);
  config["pipeline"]["stages"] = 1;
  for (const char* schedule : {"fill_drain", "1f1b", "zb_h1", "zb_h2"}) {
    INFO(schedule);
    config["pipeline"] = {{"schedule", schedule}, {"cuts", {2, 4, 7}}};
    check_same(metrics_of(config), one);
  }
  config["pipeline"] = {{"schedule", "interleaved_1f1b"}, {"cuts", {2, 4, 6}}, {"stages", 4}};
  check_same(metrics_of(config), one);
  config["activation_checkpointing"]["recompute"] = "all";
  check_same(metrics_of(config), one);
}

TEST_CASE("replicas find the shares of padded micro-batches by themselves", "[fields]") {
  Json config = masked_config();
  config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {4}}, {"widths", {1, 1}}};
  const std::vector<MetricsRecord> single = metrics_of(config);
  config["pipeline"]["widths"] = {2, 2};
  const std::vector<MetricsRecord> replicas = metrics_of(config);
  REQUIRE(replicas.size() == single.size());
  for (std::size_t i = 0; i < single.size(); ++i) {  // sums associate otherwise
    CHECK(replicas[i].loss == Approx(single[i].loss).epsilon(1e-5));
  }
}

TEST_CASE("a mean counts what is no padding: one big micro-batch has the same loss", "[fields]") {
  Json config = masked_config();
  const double small = metrics_of(config)[0].loss;
  config["train_micro_batch_size_per_gpu"] = 12;
  config["pipeline"] = {{"schedule", "1f1b"}, {"stages", 1}};
  CHECK(metrics_of(config)[0].loss == Approx(small).epsilon(1e-6));
}

TEST_CASE("a validation in which no target counts has no loss, and says so", "[fields]") {
  const ScratchFolder folder;
  SafetensorsFile data = read_safetensors(STAGECRAFT_TEST_DATA "/captured/masked.safetensors");
  data.tensors.at("labels").fill_(-100);
  const std::string nothing = folder.path("nothing.safetensors");
  write_safetensors(nothing, {data.tensors.begin(), data.tensors.end()});
  Json config = masked_config();
  config["data"]["validation_path"] = nothing;
  for (const Json& pipeline : {Json{{"schedule", "1f1b"}, {"stages", 1}}, config["pipeline"],
                               Json{{"schedule", "1f1b"}, {"cuts", {4}}, {"widths", {2, 2}}}}) {
    config["pipeline"] = pipeline;
    const Run run(config);
    const Ran ran = run.train();
    const MetricsRecord last = run.metrics().back();
    REQUIRE(last.validation);
    CHECK(std::isnan(last.loss));
    CHECK(last.no_targets);
    CHECK(says(read_text_file(RunPaths{run.dir()}.metrics()), R"("loss":null)"));
    CHECK(says(ran.printed, "no loss: no target of the validation data counts"));
    CHECK_FALSE(run.metrics().front().no_targets);
  }
}

TEST_CASE("asynchronous schedules load fields, and a run resumes with them", "[fields]") {
  Json config = masked_config();
  config["pipeline"]["schedule"] = "pipedream";
  config["checkpoint"]["every_steps"] = 2;
  const std::vector<MetricsRecord> whole = metrics_of(config);
  config["train_steps"] = 2;
  const Run run(config);
  (void)run.train();
  (void)run.train(/*resume=*/true, {"train_steps=4"});
  CHECK(run.metrics()[1].loss == whole[1].loss);
}

namespace {

/// The same samples, cut to 2, 3 or all 4 of their positions.
Json cut_config() {
  Json config = masked_config();
  config["model"]["path"] = STAGECRAFT_CAPTURED_MODELS "/lengths";
  config["data"]["shuffle"] = true;
  config["data"]["mask"] = "mask";
  config["data"]["buckets"] = {2, 3, 4};
  config["train_steps"] = 6;
  return config;
}

}  // namespace

TEST_CASE("samples cut to several lengths: schedules make no difference, and a run resumes with them",
          "[fields]") {
  Json config = cut_config();
  config["pipeline"] = {{"schedule", "1f1b"}, {"stages", 1}};
  const std::vector<MetricsRecord> one = metrics_of(config);
  for (const char* schedule : {"fill_drain", "zb_h1"}) {
    INFO(schedule);
    config["pipeline"] = {{"schedule", schedule}, {"cuts", {2, 4, 7}}};
    check_same(metrics_of(config), one);
  }
  config["checkpoint"]["every_steps"] = 2;
  config["pipeline"] = {{"schedule", "pipedream"}, {"cuts", {2, 4, 7}}};
  const std::vector<MetricsRecord> whole = metrics_of(config);
  config["train_steps"] = 2;
  const Run run(config);
  (void)run.train();
  (void)run.train(/*resume=*/true, {"train_steps=6"});
  CHECK(run.metrics().back().loss == whole.back().loss);
}

TEST_CASE("buckets that the model or the loss does not go with are refused", "[fields]") {
  using Catch::Matchers::ContainsSubstring;
  Json config = cut_config();
  config["data"]["buckets"] = {1, 2, 4};
  CHECK_THAT(Run(config).complaint(false),
             ContainsSubstring("/data/buckets/0: Lengths takes samples of length 2, 3, 4, not of 1") &&
                 ContainsSubstring("--lengths 1,2,4"));
  config["model"]["path"] = STAGECRAFT_CAPTURED_MODELS "/masked";
  CHECK_THAT(Run(config).complaint(false), ContainsSubstring("takes samples of length 4, not of 1"));
}

TEST_CASE("a run needs a loss, the config's or the model's", "[fields]") {
  Json config = tiny_config();
  config.erase("loss");
  CHECK_THAT(Run(config).complaint(false), Catch::Matchers::ContainsSubstring("/loss: is missing"));
  config = masked_config();
  config["loss"] = {{"type", "cross_entropy"}};
  CHECK_THAT(Run(config).complaint(false), Catch::Matchers::ContainsSubstring("the data has none"));
}

}  // namespace stagecraft::test
