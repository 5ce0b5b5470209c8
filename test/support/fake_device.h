#pragma once

// A device without a GPU: streams are threads, device memory is the CPU's, and the compute stream is the
// rank's own thread, whose operators are over when they return. Ranks of one FakeFabric reach each other. It
// is stricter than a GPU:
//   - a send, receive, sum or copy must stand behind a wait for a mark that is its own, of the compute stream
//     or of a launch that did so, else InternalError: on a GPU it would race with what computes;
//   - a channel is opened by both ends with one id, used in one direction and by one stream; a group by all
//     its members, and used by one stream of each;
//   - ends of different sizes fail, and so do members that come with different things, as NCCL only sometimes
//     does;
//   - what a group does is not begun before all members have launched it, nor before the compute stream of
//     each waits for it, or for a later one: who reads too early finds what was there before, every time;
//   - an abort is the device's own and comes back when nothing of it is under way any more: whoever waits for a peer
//     that has aborted waits on, until its own abort;
//   - three and more members' numbers are added beginning with another one each time: no order is promised.
// Streams dawdle now and then, so that what is not ordered by events goes wrong. synchronize() is what CUDA does
// unasked: it waits for everything that was launched.

#include "engine/device/nccl_backend.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// What the devices of a run share. Thread-safe.
class FakeFabric {
 public:
  /// A device's own, set by it: its ends and memberships are aborted. Those of its peers are not, as NCCL's.
  using Aborted = std::atomic<bool>;

  /// Blocks until the other end of the channel has come with the same id. Throws PeerError.
  void open(int channel, const std::string& id, Seconds timeout, const Aborted& aborted);
  /// Blocks until both ends have come, and copies. False: aborted.
  bool transfer(int channel, bool send, void* memory, std::size_t bytes, const Aborted& aborted);
  /// Wakes who waits here, after a device has set its own.
  void wake();
  [[nodiscard]] std::string failure() const;
  /// As NCCL reports what happens behind a launch.
  void fail(const std::string& failure);
  [[nodiscard]] int transfers() const { return transfers_; }

  /// What all members of a group launch.
  struct Collective {
    enum class Kind { all_reduce, reduce, broadcast };
    Kind kind = Kind::all_reduce;
    int root = 0;
    std::vector<NcclBackend::Numbers> tensors;
  };
  /// Blocks until all members have come with the same id. Throws PeerError.
  void join(const NcclBackend::Membership& mine, Seconds timeout, const Aborted& aborted);
  /// Blocks until all members have come, of whom the last one carries it out. False: aborted.
  bool collect(int group, int number, const Collective& call, const Aborted& aborted);
  /// Collectives that were carried out.
  [[nodiscard]] int collectives() const { return collectives_; }

 private:
  struct P2pChannel {
    std::string id;
    int ends = 0;
    void* waiting = nullptr;  ///< memory of the end that came first
    std::size_t bytes = 0;
    bool met = false;
  };
  struct Circle {
    std::string id;
    int joined = 0;
    std::vector<const Collective*> calls;  ///< of the members, null for those that have not come
    std::uint64_t rounds = 0;              ///< that are over
  };
  void carry_out(const Circle& circle);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, P2pChannel> lines_;
  std::map<int, Circle> circles_;
  std::string failure_;
  std::atomic<int> transfers_ = 0;
  std::atomic<int> collectives_ = 0;
};

class FakeDevice final : public DeviceStreams, public NcclBackend {
 public:
  using Stream = DeviceStreams::Stream;
  FakeDevice(std::shared_ptr<FakeFabric> fabric, std::uint64_t seed, int most_streams = 31);
  ~FakeDevice() override;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  /// From now on the compute stream is a thread of its own that runs behind the host, as a GPU's does: it
  /// waits, and the host does not. For tests that compute nothing but `work`.
  void let_compute_lag();
  void compute(std::function<void()> work);
  /// The rank's thread is the compute stream and the host. While the stream waits, the host goes on: it calls
  /// `work` again and again. Empty: none.
  void set_meanwhile(std::function<void()> work) { meanwhile_ = std::move(work); }
  /// From now on abort() does not return, until `false`.
  void let_abort_hang(bool hangs) { abort_hangs_ = hangs; }
  /// Waits until nothing is launched that is not over. Throws InternalError after `patience`: a GPU would stand
  /// still for ever.
  void synchronize(Seconds patience);

  [[nodiscard]] Stream make_stream() override;
  [[nodiscard]] int most_streams() const override { return most_streams_; }
  [[nodiscard]] Event take_event() override { return take(plain_); }
  [[nodiscard]] Event take_timed_event() override { return take(timed_); }
  void give_event(Event event) override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  [[nodiscard]] bool over(Event event) override;
  /// Throws InternalError for what CUDA refuses: an event that is not timed, or not over.
  [[nodiscard]] Seconds between(Event begin, Event end) override;
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override;
  [[nodiscard]] std::shared_ptr<void> host_memory(std::size_t bytes) override;
  [[nodiscard]] std::string make_id() override;
  void open(const std::vector<Endpoint>& ends, const std::vector<Membership>& groups,
            Seconds timeout) override;
  void send(int channel, Stream stream, const void* from, std::size_t bytes) override;
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override;
  void all_reduce(int group, Stream stream, const std::vector<Numbers>& tensors) override;
  void reduce(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override;
  void broadcast(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override;
  [[nodiscard]] std::optional<std::string> failure() override;
  void abort() noexcept override;

 private:
  /// How often an event was recorded, and how many of those marks are over.
  struct Marks {
    std::uint64_t recorded = 0, over = 0;
    /// The last mark is of the compute stream or of a launch behind it, and no launch has used it.
    bool covers = false;
    std::uint64_t collective = 0;  ///< the last one before the last mark
    std::vector<Event>* pool = nullptr;
    std::chrono::steady_clock::time_point when{};  ///< the last one that is over was
    void end(std::uint64_t mark);
  };
  struct Queue {
    std::deque<std::function<void()>> work;
    Marks* ordered_after = nullptr;  ///< a mark that covers and was waited for since the last launch
    bool launched = false;           ///< since the last mark
    std::uint64_t collective = 0;    ///< the last one, of all the device's
    bool busy = false;               ///< with what was taken from `work`
    std::thread thread;
  };

  /// In a group.
  struct Place {
    int number = 0;
    std::optional<Stream> stream{};  ///< none: not used yet
  };

  [[nodiscard]] Event take(std::vector<Event>& pool);
  void serve(Queue& queue, std::uint64_t seed);
  void push(Queue& queue, std::function<void()> work);
  void launch(bool send, int channel, Stream stream, void* memory, std::size_t bytes);
  void launch(int group, Stream stream, FakeFabric::Collective call);
  /// Throws where the stream's next work would not wait for what was computed before.
  void check_order(Queue& queue, const std::string& what);
  /// Of this device's events. False: aborted.
  bool await(Event event, std::uint64_t mark);
  /// The same on the rank's thread.
  bool await_as_compute(Event event, std::uint64_t mark);
  /// Of the device's collectives: until the compute stream waits for it or a later one. False: nobody does.
  bool await_demand(std::uint64_t collective);
  [[nodiscard]] Queue& queue_of(Stream stream) { return *queues_.at(static_cast<std::size_t>(stream) - 1); }

  std::shared_ptr<FakeFabric> fabric_;
  std::uint64_t seed_;
  int most_streams_;
  std::mutex mutex_;  ///< of all below
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::atomic<bool> abort_hangs_ = false;
  FakeFabric::Aborted aborted_ = false;
  std::function<void()> meanwhile_;
  Queue* lagging_ = nullptr;  ///< among them: the compute stream, where it runs behind the host
  std::deque<Marks> events_;
  std::vector<Event> plain_, timed_;             ///< that nobody has
  std::map<int, std::pair<bool, Stream>> used_;  ///< a channel's direction and stream
  std::map<int, Place> groups_;
  std::uint64_t launched_ = 0, demanded_ = 0;  ///< collectives
  bool ending_ = false;
};

}  // namespace stagecraft::test
