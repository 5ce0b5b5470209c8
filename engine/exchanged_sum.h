#pragma once

// A sum over replicas made of a transport's sends and receives, in the replicas' order: replica 0's values
// plus replica 1's, and so on. (MPI_Allreduce promises no order.) The host looks whether a piece has arrived
// before it adds, so it is for transports that the host moves.
//
// Tensors are cut into pieces; small ones are copied together into one. A piece has as many parts as there
// are replicas; a replica gets everybody's values of its own part, adds them in order, and gives the others
// the sum: a reduce-scatter and an all-gather, 2 (w - 1) / w of the bytes each way (Thakur, Rabenseifner,
// Gropp, IJHPCA 2005, section 4.5). Pieces go through both in the order they were handed in, several at a
// time.

#include "stagecraft/engine/transport/replica_sum.h"
#include "stagecraft/engine/transport/transport.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace stagecraft {

class ExchangedSum final : public ReplicaSum {
 public:
  /// Of this rank's part. `replicas`: the members, this rank among them, at least two. Messages go by `tag`
  /// with the indices 0 and 1, which no other transfer has before this sum is finished. `bytes`: of all that
  /// will be handed in; reduce_staging (schedules/rules/reductions.h) of it is allocated here, on their
  /// device, and nothing later.
  ExchangedSum(Transport& transport, const std::vector<Rank>& replicas, const Tag& tag, Bytes bytes,
               at::Device device);

  void add(const at::Tensor& tensor) override;
  void flush() override;
  void poll() override;
  void finish() override;

 private:
  struct Piece {
    std::vector<at::Tensor> of;  ///< parts of tensors, flat; several are copied together
    at::Tensor values{};         ///< the one of them, or the copy
    at::Tensor others{};         ///< staged: a row for every other replica's values of the own part
    std::vector<std::shared_ptr<Request>> requests{};  ///< under way; shared with a wait for one of them

    [[nodiscard]] bool packed() const { return of.size() > 1; }
  };

  [[nodiscard]] std::int64_t replicas() const { return static_cast<std::int64_t>(replicas_.size()); }
  [[nodiscard]] at::Tensor part(const at::Tensor& values, std::int64_t replica) const;
  [[nodiscard]] bool stage(Piece& piece);
  [[nodiscard]] bool arrived(Piece& piece);
  void scatter(Piece& piece);
  void gather(Piece& piece);
  void add_others(Piece& piece);
  void complete(Piece& piece);
  template <class Into, class From>
  void exchange(Piece& piece, std::int32_t index, const Into& into, const From& from);

  Transport& transport_;
  const std::vector<Rank> replicas_;
  const Tag tag_;
  std::int64_t me_ = 0;  ///< among the replicas

  at::Tensor staging_;               ///< bytes
  std::int64_t staged_ = 0;          ///< bytes taken since it was empty
  std::int64_t staging_pieces_ = 0;  ///< that have a part of it

  std::vector<at::Tensor> small_;  ///< to travel together
  std::int64_t small_bytes_ = 0;
  // In the order they were handed in, each queue behind the next.
  std::deque<Piece> waiting_, scattering_, gathering_;
};

}  // namespace stagecraft
