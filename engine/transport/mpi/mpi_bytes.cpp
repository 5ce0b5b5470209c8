#include "engine/transport/mpi/mpi_bytes.h"

#include "base/error.h"
#include "engine/transport/mpi/mpi_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace stagecraft::transport {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;

}  // namespace

MpiBytes::MpiBytes(std::size_t bytes, std::size_t most) : count_(1) {
  if (bytes <= most) {
    count_ = static_cast<int>(bytes);
    return;
  }
  const std::size_t block = std::min(kBlock, most);
  const std::size_t blocks = bytes / block;
  STAGECRAFT_CHECK(blocks <= INT_MAX, fmt::format("a message of {} bytes", bytes));
  // Both parts are single elements of their types: struct's counts are ints as well.
  MPI_Datatype one = MPI_DATATYPE_NULL;
  MPI_Datatype all = MPI_DATATYPE_NULL;
  mpi_check(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &one), "MPI_Type_contiguous");
  mpi_check(MPI_Type_contiguous(static_cast<int>(blocks), one, &all), "MPI_Type_contiguous");
  std::array<int, 2> counts{1, static_cast<int>(bytes % block)};
  std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(blocks * block)};
  std::array<MPI_Datatype, 2> types{all, MPI_BYTE};
  mpi_check(MPI_Type_create_struct(2, counts.data(), places.data(), types.data(), &type_),
            "MPI_Type_create_struct");
  mpi_check(MPI_Type_commit(&type_), "MPI_Type_commit");
  MPI_Type_free(&all);
  MPI_Type_free(&one);
}

MpiBytes::~MpiBytes() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);  // MPI keeps it for transfers under way
}

std::size_t received_bytes(const MPI_Status& status) {
  MPI_Count bytes = 0;
  mpi_check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");
  return static_cast<std::size_t>(bytes);
}

}  // namespace stagecraft::transport
