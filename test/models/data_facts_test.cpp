#include "models/data/data_facts.h"

#include "base/error.h"
#include "base/json.h"
#include "models/data/synthetic.h"
#include "test/support/catch.h"

namespace stagecraft {
namespace {

TEST_CASE("a data set that is told of answers as the one that is there, and gives no samples", "[data]") {
  SyntheticDataConfig config;
  config.task = GENERATE(as<std::string>(), "classification", "regression", "tokens");
  CAPTURE(config.task);
  const auto there = open_dataset({config}, {});
  const auto told = dataset_of(json::read<DataFacts>(json::write(facts_of(*there)), {"facts", ""}));
  CHECK(told->size(Split::train) == there->size(Split::train));
  CHECK(told->size(Split::validation) == there->size(Split::validation));
  CHECK(told->sample().shape == there->sample().shape);
  CHECK(told->sample().dtype == there->sample().dtype);
  CHECK(told->sample().classes == there->sample().classes);
  CHECK(told->sample().targets == there->sample().targets);
  CHECK(told->fingerprint() == there->fingerprint());
  CHECK(told->summary() == there->summary());
  CHECK_THROWS_AS(told->inputs(Split::train, {0}), InternalError);
  CHECK_THROWS_AS(told->targets(Split::train, {0}), InternalError);
}

}  // namespace
}  // namespace stagecraft
