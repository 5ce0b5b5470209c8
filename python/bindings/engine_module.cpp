// stagecraft._engine: sessions for Python. Nothing happens when it is imported; the package's own files say what its
// users see (python/stagecraft).

#include "base/error.h"
#include "base/failure.h"
#include "base/hangup.h"
#include "base/json.h"
#include "cli/command_line.h"
#include "engine/core/overflow.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/run_transport.h"
#include "engine/session/measured.h"
#include "engine/session/session.h"
#include "engine/transport/c10d/c10d_session.h"
#include "engine/transport/mpi/mpi_library.h"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace stagecraft {

// In place of base/hangup.cpp, which notes what was so before main(): Python has long begun.
void hangup_as_given() {}

namespace {

/// Signals that Python got while it waits for ranks. The first one is raised when they are through; the second ends
/// what they do.
class Signals {
 public:
  explicit Signals(std::weak_ptr<Session> session) : session_(std::move(session)) {}

  void look() {
    const py::gil_scoped_acquire python;
    if (PyErr_CheckSignals() == 0) return;
    py::error_already_set error;  // takes it from Python
    if (const auto session = session_.lock(); session && error_) session->interrupt();
    error_ = std::move(error);
  }
  /// With the GIL.
  void raise() {
    if (error_) throw std::move(*error_);
  }

 private:
  std::weak_ptr<Session> session_;
  std::optional<py::error_already_set> error_;
};

/// The classes of stagecraft.errors, by what was thrown here.
void translate(std::exception_ptr error) {  // NOLINT: as pybind11 calls it
  try {
    if (error) std::rethrow_exception(error);
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const py::error_already_set&) {
    throw;
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    bool finite = true;
    try {
      std::rethrow_exception(error);
    } catch (const NotFiniteError&) {
      finite = false;
    } catch (...) {  // any other
    }
    const char* name = !finite                               ? "NotFiniteError"
                       : failure.code == exit_code::kInput   ? "InputError"
                       : failure.code == exit_code::kRefused ? "RefusedError"
                       : failure.code == exit_code::kPeer    ? "PeerError"
                                                             : "InternalError";
    const py::object kind = py::module_::import("stagecraft.errors").attr(name);
    PyErr_SetString(kind.ptr(), failure.message.c_str());
  }
}

/// MPI's, for all pipelines of the process: it is initialized once. Never destroyed but by finish().
std::unique_ptr<ProcessSession>& mpi_session() {
  static auto& session = *new std::unique_ptr<ProcessSession>;
  return session;
}

ProcessSession& the_mpi() {
  if (!mpi_session()) mpi_session() = mpi_library().connect(MpiThreads::in_turn);
  return *mpi_session();
}

/// When Python ends. `failed`: by an exception, so that the other ranks wait for nothing.
void finish(bool failed) {
  if (!mpi_session()) return;
  if (failed) mpi_session()->abort(exit_code::kDefect);
  mpi_session().reset();
}

/// What a wait for ranks came to: without the GIL, with Python's signals looked at. A signal goes before an error.
template <class Work>
auto without_python(const std::weak_ptr<Session>& session, const Work& work) {
  Signals signals(session);
  try {
    auto made = [&] {
      const py::gil_scoped_release others;
      return work([&] { signals.look(); });
    }();
    signals.raise();
    return made;
  } catch (const py::error_already_set&) {
    throw;
  } catch (...) {
    signals.raise();
    throw;
  }
}

/// Throws InputError in a fork, whose parent has the threads of the ranks.
void require_own_process(pid_t made_by) {
  if (::getpid() == made_by) return;
  throw InputError(
      "this process is a fork of the one that made the pipeline, and has none of its ranks: make one here, "
      "or step "
      "in the other");
}

/// A step that was handed over, for Python: it may outlive the pipeline, and be asked by any thread.
class PyStep {
 public:
  PyStep(std::shared_ptr<StepUnderWay> step, const std::shared_ptr<Session>& session)
      : step_(std::move(step)), session_(session), terms_(session->setup().inputs().loss->terms()) {}

  [[nodiscard]] bool over() const { return step_->over(); }
  [[nodiscard]] bool failed() const { return step_->failed(); }
  /// Waits. Throws the step's error, each time.
  [[nodiscard]] py::dict result() const {
    if (!step_->over()) require_own_process(made_by_);
    try {
      return dict_of(
          without_python(session_, [&](const Session::Meanwhile& look) { return step_->result(look); }),
          terms_);
    } catch (const py::error_already_set&) {
      throw;
    } catch (...) {
      step_->mark_heard();
      throw;
    }
  }

  [[nodiscard]] static py::dict dict_of(const SessionStep& step, const std::vector<std::string>& names) {
    const StepReport& report = step.report;
    py::dict made;
    made["step"] = report.step;
    made["loss"] = report.loss;
    py::dict terms;
    for (std::size_t i = 0; i < names.size(); ++i) terms[py::str(names[i])] = report.terms.at(i);
    made["terms"] = terms;
    made["norm"] = report.gradient_norm;
    made["loss_scale"] = report.loss_scale;
    made["skipped"] = report.skipped;
    made["learning_rate"] = report.learning_rate;
    made["samples"] = report.samples;
    made["tokens"] = report.tokens;
    made["seconds"] = step.took.value;
    py::list ranks;
    for (const RankSeconds& rank : step.ranks) {
      ranks.append(py::make_tuple(rank.rank, rank.compute.value, rank.wait.value, rank.collective.value,
                                  rank.other.value));
    }
    made["ranks"] = ranks;
    return made;
  }

 private:
  std::shared_ptr<StepUnderWay> step_;
  std::weak_ptr<Session> session_;
  std::vector<std::string> terms_;
  pid_t made_by_ = ::getpid();
};

/// What Python calls: the same, with the GIL let go of while ranks work, and one call at a time.
class PySession {
 private:
  /// A call that is under way. Made and ended with the GIL.
  class Call {
   public:
    explicit Call(PySession& its) : its_(its) {
      if (its.busy_) throw InputError("two calls at once: a pipeline makes one after the other");
      if (its.over_mpi_) take_mpi(&its);
      its.busy_ = true;
    }
    ~Call() { its_.busy_ = false; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    PySession& its_;
  };

  void forget() {
    if (last_over_mpi_ == this) last_over_mpi_ = nullptr;
  }

  template <class Work>
  auto called(const Work& work) {
    require_own_process(made_by_);
    const std::shared_ptr<Session> session = session_;  // should another thread close the pipeline
    if (!session) throw InputError("this pipeline is closed");
    const Call call(*this);
    return without_python(session, [&](const Session::Meanwhile& look) { return work(*session, look); });
  }

 public:
  /// MPI serves one thread at a time: the pipeline that used it last ends what its ranks do. `next`: who uses it now.
  static void take_mpi(PySession* next) {
    PySession* const last = std::exchange(last_over_mpi_, next);
    if (last == nullptr || last == next) return;
    if (last->busy_) {
      last_over_mpi_ = last;
      throw InputError(
          "two pipelines at once in threads of one process, over MPI, which serves one thread at a time: let "
          "them take turns, or start with torchrun");
    }
    if (const auto session = last->session_) {
      const py::gil_scoped_release others;
      session->await_all();
    }
  }

  PySession(const std::string& config, const GivenTensors& first, const std::string& checkpoint,
            const std::string& ranks, int machine_rank, int machine_world)
      : over_mpi_(ranks == "mpi") {
    try {
      const Call call(*this);
      session_ = without_python({}, [&](const Session::Meanwhile& look) {
        const Json json = json::parse_text(config, "pipeline");
        SessionRanks its;
        if (over_mpi_) {
          const TransportOptions options = transport_options(run_config_from(json, "pipeline"));
          ProcessSession& mpi = the_mpi();
          const LaunchInfo launch = detect_launch();
          check_world(launch, mpi.world());
          its = {mpi.make_transport(mpi.share(options)), launch.machine_rank, launch.machine_world};
        } else if (!ranks.empty()) {
          const TransportOptions options = transport_options(run_config_from(json, "pipeline"));
          c10d_ = std::make_unique<C10dSession>(ranks);
          its = {c10d_->make_transport(c10d_->share(options)), machine_rank, machine_world};
        }
        return std::make_shared<Session>(json, first, std::move(its), checkpoint, look);
      });
    } catch (...) {
      forget();
      throw;
    }
  }
  ~PySession() {
    forget();
    if (::getpid() != made_by_) {  // a fork, as a DataLoader's worker is: the ranks' threads are the parent's
      new std::shared_ptr<Session>(std::move(session_));
      (void)c10d_.release();
      return;
    }
    try {
      close("");
    } catch (...) {  // of a step that nobody asked: the one place left to say it
      translate(std::current_exception());
      PyErr_WriteUnraisable(Py_None);
    }
  }
  /// `why`: the others must not wait for this process, which goes for that reason; "": they do not. Throws the error
  /// of a step that nobody asked.
  void close(const std::string& why) {
    std::shared_ptr<Session> session = std::exchange(session_, nullptr);
    const py::gil_scoped_release others;
    std::exception_ptr unheard;
    if (session && !busy_) {
      try {
        if (why.empty()) session->settle([] {});
      } catch (...) {
        unheard = std::current_exception();
      }
      if (!why.empty()) session->abandon(why);
    }
    session.reset();
    c10d_.reset();
    if (unheard) std::rethrow_exception(unheard);
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  PyStep step(const GivenTensors& batch, const std::vector<std::int64_t>& sizes, std::optional<double> rate) {
    const std::shared_ptr<Session> session = session_;
    return {called([&](Session& its, const Session::Meanwhile& look) {
              return its.begin(SegmentKind::train, batch, sizes, rate, look);
            }),
            session};
  }
  py::dict evaluate(const GivenTensors& batch, const std::vector<std::int64_t>& sizes) {
    const std::vector<std::string> terms = its().setup().inputs().loss->terms();
    return PyStep::dict_of(called([&](Session& its, const Session::Meanwhile& look) {
                             return its.evaluate(batch, sizes, look);
                           }),
                           terms);
  }
  void refuse(const std::string& why) {
    called([&](Session& its, const Session::Meanwhile& look) { return its.refuse(why, look), 0; });
  }
  void settle() {
    called([&](Session& its, const Session::Meanwhile& look) { return its.settle(look), 0; });
  }
  /// `rate`: GivenRate's.
  std::string save(const std::string& path, const py::function& beside,
                   const std::optional<std::pair<std::optional<double>, bool>>& rate) {
    const auto keep = [&] {
      const py::gil_scoped_acquire held;
      try {
        beside();
      } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_OSError)) throw;
        throw InputError({path, ""}, "the model cannot be kept beside the checkpoint: " +
                                         py::str(error.value()).cast<std::string>());
      }
    };
    std::optional<GivenRate> given;
    if (rate) given = GivenRate{.lr = rate->first, .each_step = rate->second};
    return called(
        [&](Session& its, const Session::Meanwhile& look) { return its.save(path, look, keep, given); });
  }
  std::map<std::string, at::Tensor> state() {
    return called([&](Session& its, const Session::Meanwhile& look) { return its.state(look); });
  }
  void set_state(const std::map<std::string, at::Tensor>& weights) {
    called([&](Session& its, const Session::Meanwhile& look) { return its.set_state(weights, look), 0; });
  }
  py::list gather(const py::bytes& mine) {
    const auto text = static_cast<std::string>(mine);
    const std::vector<std::string> all =
        called([&](Session& its, const Session::Meanwhile& look) { return its.gather(text, look); });
    py::list bytes;
    for (const std::string& each : all) bytes.append(py::bytes(each));
    return bytes;
  }
  std::vector<std::string> state_names() const { return its().state_names(); }
  std::vector<std::string> notes() const { return its().notes(); }
  std::string config() const { return json::write(its().setup().config()).dump(); }
  std::string plan() const { return json::write(its().setup().plan()).dump(); }
  std::int64_t steps() const { return its().steps(); }
  bool reads_data() const { return its().reads_data(); }
  bool is_first() const { return its().is_first(); }
  bool is_process() const { return its().is_process(); }

 private:
  [[nodiscard]] const Session& its() const {
    if (!session_) throw InputError("this pipeline is closed");
    return *session_;
  }

  std::unique_ptr<C10dSession> c10d_;
  std::shared_ptr<Session> session_;
  bool busy_ = false;  ///< guarded by the GIL, as is the next
  static inline PySession* last_over_mpi_ = nullptr;
  const bool over_mpi_;
  const pid_t made_by_ = ::getpid();
};

int run(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const py::gil_scoped_release others;
  return run_command_line(static_cast<int>(words.size()), argv.data());
}

std::string profile(const std::string& config, const GivenTensors& batch) {
  const py::gil_scoped_release others;
  return json::write(measured(json::parse_text(config, "pipeline"), batch)).dump();
}

/// Everybody's text, in rank order. Collective over the processes that a launcher of MPI's started.
std::vector<std::string> gather_over_mpi(const std::string& mine) {
  PySession::take_mpi(nullptr);
  const py::gil_scoped_release others;
  ProcessSession& mpi = the_mpi();
  check_world(detect_launch(), mpi.world());
  return mpi.make_transport(mpi.share({}))->all_gather_text(mine);
}

py::dict launch() {
  const LaunchInfo info = detect_launch();
  py::dict made;
  made["world"] = info.world;
  made["rank"] = info.rank;
  made["torch"] = info.torch;
  made["machine_rank"] = info.machine_rank;
  made["machine_world"] = info.machine_world;
  return made;
}

}  // namespace
}  // namespace stagecraft

PYBIND11_MODULE(_engine, module) {
  using namespace stagecraft;  // NOLINT: of this function
  py::register_local_exception_translator(translate);
  module.attr("VERSION") = STAGECRAFT_VERSION;
  module.attr("INTERFACE") = STAGECRAFT_ENGINE_INTERFACE;
  module.def("run_command_line", &run, py::arg("words"));
  module.def("launch", &launch);
  module.def("gather_over_mpi", &gather_over_mpi, py::arg("mine"));
  module.def("finish", &finish, py::arg("failed"));
  module.def("profile", &profile, py::arg("config"), py::arg("batch"));
  py::class_<PyStep>(module, "StepUnderWay")
      .def("over", &PyStep::over)
      .def("failed", &PyStep::failed)
      .def("result", &PyStep::result);
  py::class_<PySession>(module, "Session")
      .def(py::init<const std::string&, const GivenTensors&, const std::string&, const std::string&, int,
                    int>(),
           py::arg("config"), py::arg("first"), py::arg("checkpoint"), py::arg("ranks"),
           py::arg("machine_rank"), py::arg("machine_world"))
      .def("close", &PySession::close, py::arg("why"))
      .def("step", &PySession::step, py::arg("batch"), py::arg("sizes"), py::arg("rate"))
      .def("evaluate", &PySession::evaluate, py::arg("batch"), py::arg("sizes"))
      .def("save", &PySession::save, py::arg("path"), py::arg("beside"), py::arg("rate"))
      .def("refuse", &PySession::refuse, py::arg("why"))
      .def("settle", &PySession::settle)
      .def("state", &PySession::state)
      .def("set_state", &PySession::set_state, py::arg("weights"))
      .def("gather", &PySession::gather, py::arg("mine"))
      .def("state_names", &PySession::state_names)
      .def("notes", &PySession::notes)
      .def("config", &PySession::config)
      .def("plan", &PySession::plan)
      .def("steps", &PySession::steps)
      .def("reads_data", &PySession::reads_data)
      .def("is_first", &PySession::is_first)
      .def("is_process", &PySession::is_process);
}
