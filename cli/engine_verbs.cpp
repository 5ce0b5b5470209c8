#include "stagecraft/cli/commands.h"

namespace stagecraft::cli {

void add_engine_verbs(CLI::App& app) {
  add_profile(app);
  add_train(app);
  add_doctor(app);
}

}  // namespace stagecraft::cli
