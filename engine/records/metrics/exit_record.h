#pragma once

// exit.json: why a run failed, or that a signal stopped it.

#include "base/fields.h"
#include "base/ids.h"

#include <string>
#include <vector>

namespace stagecraft {

/// What the first failing rank writes.
struct ExitRecord {
  Rank rank;
  std::vector<StageId> stages;  ///< that the rank holds
  std::string action;           ///< what it was doing: "step 12", "start-up"
  std::string message;
  int code = 1;  ///< as in base/error.h
};
template <class V>
void describe(V& v, ExitRecord& r) {
  v.required("rank", r.rank, "that failed first");
  v.optional("stages", r.stages, "that the rank holds");
  v.optional("action", r.action, "what it was doing");
  v.required("message", r.message, "why");
  v.required("code", r.code, "exit code");
}

}  // namespace stagecraft
