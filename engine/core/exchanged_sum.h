#pragma once

// A sum over copies made of a transport's sends and receives, in the copies' order: copy 0's values plus copy
// 1's, and so on. (MPI_Allreduce promises no order.) Copies are the replicas of a stage, a rank each, or those
// of a tied weight, of which a rank may have several. The host looks whether a piece has arrived before it
// adds, so it is for transports that the host moves.
//
// Tensors are cut into pieces; small ones are copied together into one. A piece has as many parts as there
// are ranks; a rank gets everybody's values of its own part, adds them in order, and gives the others the sum:
// a reduce-scatter and an all-gather, 2 (w - 1) / w of the bytes each way (Thakur, Rabenseifner, Gropp, IJHPCA
// 2005, section 4.5). Pieces go through both in the order they were handed in, several at a time.

#include "engine/transport/replica_sum.h"
#include "engine/transport/transport.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace stagecraft {

class ExchangedSum final : public ReplicaSum {
 public:
  /// Of this rank's part. `copies`: the rank of each, this one among them; a rank of several stands there as
  /// often. Messages go by `tag`, of phases 0 and 1, which no other transfer has before this sum is finished.
  /// `staging`: as schedules/rules/reductions.h says for what will be handed in; allocated here, on its device,
  /// and nothing later.
  ExchangedSum(Transport& transport, const std::vector<Rank>& copies, const Tag& tag, Bytes staging,
               at::Device device);

  void add(const at::Tensor& tensor) override;
  void add(const std::vector<at::Tensor>& own) override;
  void flush() override;
  void poll() override;
  void finish() override;
  [[nodiscard]] Progress progress() const override { return progress_; }

 private:
  struct Piece {
    std::vector<at::Tensor> of;    ///< parts of tensors, flat; several are copied together
    std::vector<at::Tensor> more;  ///< the same part of this rank's further copies
    at::Tensor values{};           ///< the one of them, or the copy
    at::Tensor others{};           ///< staged: a row for every copy elsewhere, of the own part
    std::vector<std::shared_ptr<Request>> requests{};  ///< under way; shared with a wait for one of them

    [[nodiscard]] bool packed() const { return of.size() > 1; }
    [[nodiscard]] Bytes bytes() const { return Bytes{static_cast<std::int64_t>(values.nbytes())}; }
  };

  [[nodiscard]] std::int64_t ranks() const { return static_cast<std::int64_t>(ranks_.size()); }
  [[nodiscard]] at::Tensor part(const at::Tensor& values, std::int64_t rank) const;
  [[nodiscard]] bool stage(Piece& piece);
  [[nodiscard]] bool arrived(Piece& piece);
  void scatter(Piece& piece);
  void gather(Piece& piece);
  void add_others(Piece& piece);
  void complete(Piece& piece);
  void receive(Piece& piece, std::int64_t from, std::int32_t phase, const at::Tensor& into);
  void send(Piece& piece, std::int64_t to, std::int32_t phase, const at::Tensor& tensor);
  /// Calls `visit` with every other rank's number, the next one first.
  template <class Visit>
  void each_other(const Visit& visit) const;

  Transport& transport_;
  const Tag tag_;
  std::vector<Rank> ranks_;           ///< each once, by their first copies
  std::vector<std::int64_t> copies_;  ///< whose each copy is, among the ranks
  std::int64_t me_ = 0;               ///< among the ranks
  std::size_t own_ = 0;               ///< copies of this rank

  at::Tensor staging_;               ///< bytes
  std::int64_t staged_ = 0;          ///< bytes taken since it was empty
  std::int64_t staging_pieces_ = 0;  ///< that have a part of it

  Progress progress_;

  std::vector<at::Tensor> small_;  ///< to travel together
  std::int64_t small_bytes_ = 0;
  // In the order they were handed in, each queue behind the next.
  std::deque<Piece> waiting_, scattering_, gathering_;
};

}  // namespace stagecraft
