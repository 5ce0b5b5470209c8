#pragma once

#include "engine/device/streams.h"

#include <cuda_runtime_api.h>

#include <vector>

namespace stagecraft {

class CudaStreams final : public DeviceStreams {
 public:
  explicit CudaStreams(int device);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  [[nodiscard]] Stream make_stream() override;
  [[nodiscard]] int most_streams() const override;
  [[nodiscard]] Event take_event() override { return take(plain_, cudaEventDisableTiming); }
  [[nodiscard]] Event take_timed_event() override { return take(timed_, cudaEventDefault); }
  void give_event(Event event) override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  [[nodiscard]] bool over(Event event) override;
  [[nodiscard]] Seconds between(Event begin, Event end) override;
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override;
  [[nodiscard]] std::shared_ptr<void> host_memory(std::size_t bytes) override;

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] cudaStream_t of(Stream stream) const { return streams_[static_cast<std::size_t>(stream)]; }

 private:
  using Pool = std::vector<Event>;  ///< of events that nobody has
  struct Made {
    cudaEvent_t event;
    Pool* pool;
  };
  [[nodiscard]] Event take(Pool& pool, unsigned int flags);
  [[nodiscard]] cudaEvent_t of(Event event) const { return events_[static_cast<std::size_t>(event)].event; }

  int device_;
  std::vector<cudaStream_t> streams_{nullptr};  // ATen's default stream is CUDA's
  std::vector<Made> events_;
  Pool plain_, timed_;
};

}  // namespace stagecraft
