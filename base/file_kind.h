#pragma once

// What a file or a folder is, told by its contents: for messages about a wrong one, and so that no output takes the
// place of a file of another kind.

#include "base/error.h"
#include "base/json.h"

#include <string>
#include <string_view>

namespace stagecraft {

/// "schedule", "profile", "cluster", "trace", "run config", "plan", "run summary", "manifest" (of a checkpoint or a
/// model folder) or "Hugging Face config", by its keys; empty: none of these.
[[nodiscard]] std::string kind_of(const Json& json);

/// Throws InputError where the document is of another kind and has none of the keys by which `kind` is told: "is a
/// plan; a run config is needed here".
void require_kind(const Json& json, const InputPlace& place, const std::string& kind);

/// Or with a comment.
[[nodiscard]] bool begins_as_json(char first);

/// kind_of() of a whole file, which may also be a "picture" (SVG), a "web page", a schedule as text or as
/// PyTorch's CSV or a "completion". Throws nothing: what cannot be read as JSON is of no kind.
[[nodiscard]] std::string kind_of_contents(std::string_view contents);

/// "a checkpoint", "a Hugging Face model" and the like by what is in it, else "a folder". Of a run directory with what
/// people may mean of it: "a run directory (it holds config.json, plan.json, checkpoints/)".
[[nodiscard]] std::string kind_of_folder(const std::string& path);
[[nodiscard]] bool is_model_folder(const std::string& path);
/// The same of what may be a file: "a plan", "a file". Throws InputError: nothing is there.
[[nodiscard]] std::string kind_at(const std::string& path);

}  // namespace stagecraft
