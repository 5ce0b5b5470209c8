#include "engine/run/save/setup_files.h"

#include "base/files.h"
#include "base/json.h"

namespace stagecraft {

void write_setup(const RunPaths& paths, const RunSetup& setup) {
  write_json_file(paths.config(), json::write(setup.config()), Links::replace);
  write_json_file(paths.plan(), json::write(setup.plan()), Links::replace);
}

}  // namespace stagecraft
