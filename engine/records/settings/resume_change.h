#pragma once

// A value of the config that a resume changed, as the user allowed it: kept in every manifest from there on, so that
// whoever finds the checkpoint knows what made it.

#include "base/json.h"

#include <cstdint>
#include <string>

namespace stagecraft {

struct ResumeChange {
  std::int64_t step = 0;  ///< steps made before it
  std::string pointer;    ///< "/optimizer/params/lr"; "/data": the files themselves
  Json before;            ///< null: it was not there
  Json now;
};
template <class V>
void describe(V& v, ResumeChange& c) {
  v.required("step", c.step, "optimizer steps made before the change", json::at_least(0));
  v.required("pointer", c.pointer, "which value of the config");
  v.required("before", c.before, "null: none");
  v.required("now", c.now, "null: none");
}

}  // namespace stagecraft
