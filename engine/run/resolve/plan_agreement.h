#pragma once

#include "engine/config/config.h"
#include "engine/run/resolve/plan_request.h"
#include "models/model.h"
#include "partitioner/plan/plan.h"

#include <optional>
#include <string>

namespace stagecraft {

/// A plan is not for this run. Whoever reads it may have another remedy than the one in what().
class PlanMismatch : public InputError {
 public:
  PlanMismatch(const InputPlace& place, const std::string& fact, const std::string& remedy = "")
      : InputError(place, remedy.empty() ? fact : fact + "; " + remedy),
        fact_(InputError(place, fact).what()) {}
  [[nodiscard]] const std::string& fact() const { return fact_; }  ///< what() without the remedy

 private:
  std::string fact_;
};

/// Throws PlanMismatch where `plan` is not one for this run: of another model, dtype, micro-batch size or number of
/// ranks, or against a key of /pipeline. `plan_file` and `file` (the config's) are named.
void check_plan(const Plan& plan, const std::string& plan_file, const RunConfig& config,
                const std::string& file, const Model& model, const std::optional<World>& world);

}  // namespace stagecraft
