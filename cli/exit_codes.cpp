#include "cli/exit_codes.h"

#include <fmt/format.h>

namespace stagecraft::cli {

const std::vector<ExitCode>& exit_codes() {
  static const std::vector<ExitCode> kAll{
      {0, "done"},
      {exit_code::kInput, "bad usage or input"},
      {exit_code::kRefused, "refused: an unsafe program or layer, or nothing fits"},
      {exit_code::kPeer, "a peer died or hung"},
      {exit_code::kStopped, "stopped by a signal; go on with --resume"},
      {exit_code::kDefect, "anything else"},
  };
  return kAll;
}

std::string exit_codes_text() {
  std::string text;
  for (const ExitCode& exit : exit_codes()) text += fmt::format("  {:>2}  {}\n", exit.code, exit.meaning);
  return text;
}

}  // namespace stagecraft::cli
