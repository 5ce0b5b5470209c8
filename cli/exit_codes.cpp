#include "cli/exit_codes.h"

#include "base/failure.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace stagecraft::cli {

std::string exit_codes_text() {
  constexpr std::pair<int, const char*> kAll[] = {
      {0, "done"},
      {exit_code::kInput, "bad usage or input"},
      {exit_code::kRefused, "refused: an unsafe program or layer, or nothing fits"},
      {exit_code::kPeer, "a peer died or hung"},
      {exit_code::kStopped, "stopped by a signal; go on with --resume"},
      {exit_code::kDefect, "anything else"},
  };
  std::string text;
  for (const auto& [code, meaning] : kAll) text += fmt::format("  {:>2}  {}\n", code, meaning);
  return text;
}

}  // namespace stagecraft::cli
