#include "engine/run/save/background_save.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/transport/quiet_thread.h"

#include <fmt/format.h>

#include <functional>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace stagecraft {
namespace {

/// What became of `work` on a thread of its own, whatever it threw; "": it is done.
std::string failure_of_thread(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Steps come first: where cores are few, it takes what ranks leave, and a tenth beside one that leaves nothing.
constexpr int kNiceness = 10;

std::thread patient_thread(std::function<void()> work) {
  return transport::quiet_thread("save", [work = std::move(work)] {
    (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);  // Linux: of this thread alone
    work();
  });
}

}  // namespace

BackgroundSave::~BackgroundSave() { abandon(); }

Saved BackgroundSave::begin(const Worker& worker, Transport& transport, const SaveRequest& request) {
  STAGECRAFT_CHECK(!begun_, "one checkpoint at a time is written in the background");
  const bool first = transport.rank() == Rank{0};
  Saved saved;
  Json told;
  if (first) {
    saved.notes = sweep_checkpoints(paths_.checkpoints());
    told["failure"] = why_not([&] { told["aside"] = begin_checkpoint(paths_.checkpoints(), request.step); });
    manifest_ = manifest_of(setup_, paths_.run, request.step, request.validation_owed);
    manifest_.loss_scale = worker.loss_scale();
  }
  // Bytes of a path may be anything, which JSON's text is not.
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(told);
  told = Json::from_msgpack(transport.broadcast({bytes.begin(), bytes.end()}));
  if (const auto failure = told.at("failure").get<std::string>(); !failure.empty()) {
    saved.failure = {Rank{0}, failure};
    return saved;
  }
  aside_ = told.at("aside").get<std::string>();
  const std::vector<int> layers = layers_saved_by(setup_, transport.rank());
  mine_ = {{"files", Json::array()}, {"failure", ""}};
  mine_["failure"] = why_not([&] {
    request.first();
    snapshot_.take(worker, setup_.inputs().model, layers);
  });
  step_ = request.step;
  older_ = request.older;
  begun_ = true;
  handed_over_ = false;
  written_ = !mine_["failure"].get<std::string>().empty();
  if (written_) return saved;
  const std::string none =
      failure_of_thread([&] { writer_ = patient_thread([this, layers] { write(layers); }); });
  if (!none.empty()) mine_["failure"] = "no thread to write it: " + none;
  written_ = written_ || !none.empty();
  return saved;
}

void BackgroundSave::write(const std::vector<int>& layers) {
  const std::string failure = failure_of_thread([&] {
    mine_["files"] = write_layers(setup_, layers, aside_, [&](int index) -> const SavedLayer& {
      if (abandoned_) throw InputError("abandoned");  // which nobody reads
      return snapshot_.layer(index);
    });
  });
  mine_["failure"] = failure;
  written_ = true;
}

void BackgroundSave::hand_over(Transport& transport) {
  if (handed_over_) return;
  handed_over_ = true;
  join();
  saved_ = {};
  Manifest manifest = std::move(manifest_);
  transport.gather_text(Rank{0}, mine_.dump(), [&](Rank from, const std::string& text) {
    const Json its = Json::parse(text);
    const auto failure = its.at("failure").get<std::string>();
    if (!failure.empty() && !saved_.failure) saved_.failure = {from, failure};
    for (const Json& file : its.at("files")) manifest.files.push_back(json::read<CheckpointFile>(file, {}));
  });
  if (transport.rank() != Rank{0}) return;
  writer_ = patient_thread([this, whole = std::move(manifest)] { publish(whole); });
}

void BackgroundSave::publish(const Manifest& manifest) {
  const std::string folder = paths_.checkpoints();
  if (!saved_.failure) {
    const std::string failure = failure_of_thread([&] {
      write_compared(aside_ + "/" + kManifestName, {manifest_text(manifest)});
      std::string note = publish_checkpoint(folder, aside_, step_);
      if (!note.empty()) saved_.notes.push_back(std::move(note));
    });
    if (!failure.empty()) saved_.failure = {Rank{0}, failure};
  }
  std::vector<std::string> notes;
  const std::string why = failure_of_thread([&] {
    if (saved_.failure) {
      notes = sweep_checkpoints(folder);
    } else if (older_ == OlderCheckpoints::go) {
      notes = remove_older_checkpoints(folder, setup_.config().checkpoint.keep, paths_.run);
    }
  });
  if (!why.empty()) notes.push_back(why);
  for (std::string& note : notes) saved_.notes.push_back(std::move(note));
}

Saved BackgroundSave::finish(Transport& transport) {
  STAGECRAFT_CHECK(begun_, "there is nothing to finish");
  join();
  hand_over(transport);
  join();
  begun_ = false;
  Json told;
  if (transport.rank() == Rank{0} && saved_.failure)
    told = {{"rank", saved_.failure->rank.value}, {"what", saved_.failure->what}};
  told = Json::parse(transport.broadcast(told.dump()));
  if (told.is_null()) {
    saved_.folder = checkpoint_path(paths_.checkpoints(), step_);
  } else {
    saved_.failure = {Rank{told.at("rank").get<int>()}, told.at("what").get<std::string>()};
  }
  return std::move(saved_);
}

void BackgroundSave::abandon() {
  abandoned_ = true;
  join();
  begun_ = false;
}

void BackgroundSave::join() {
  if (writer_.joinable()) writer_.join();
}

}  // namespace stagecraft
