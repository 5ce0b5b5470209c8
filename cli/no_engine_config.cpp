// Run configurations in a build without the engine: their models and data need LibTorch.

#include "base/error.h"
#include "base/json.h"
#include "cli/input_program.h"
#include "cli/request_options.h"
#include "cli/run_schema.h"

namespace stagecraft::cli {

Json run_schema() {
  throw InputError(
      "schema run: this build has no engine, which alone knows run.json; configs/run.schema.json in the "
      "source tree is the same schema");
}

InputProgram config_input(const std::string& path, const Json& /*json*/, const InputRequest& /*request*/) {
  throw InputError(
      {path, ""},
      "is a run configuration, and this build has no engine to build its model with; make a plan of "
      "it on a machine with the engine: `stagecraft plan CONFIG -o plan.json`");
}

PlanInputs config_plan_inputs(const std::string& config, const std::vector<std::string>& /*overrides*/,
                              const std::string& /*profile_path*/, const std::string& /*cluster_path*/) {
  throw InputError(
      {config, ""},
      "is a run configuration, and this build has no engine to build its model with; give --profile "
      "and --cluster instead");
}

}  // namespace stagecraft::cli
