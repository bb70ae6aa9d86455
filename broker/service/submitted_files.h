// The files of a submission on the broker's disk: those of data sets. What a file says in one blob is there
// already and gets a second name; what is put together takes room, but no more than a few times what was
// uploaded for it. A model is read where its pieces are (submitted_model.h).
#pragma once

#include <filesystem>
#include <string>

#include "configs/job.h"
#include "data/data_spec.h"
#include "proto/messages.h"
#include "storage/blob_store.h"

namespace weft::broker {

// Relative, downwards, made of plain names.
bool is_safe_path(const std::string& path);

// The submission's job file, read without its files: `folder` is where they would be. Every path in it must
// be one of the submission's files, PermissionDenied else; every blob must be there and as long as is said,
// NotFound and Corrupted else; and what the files would take must stand in a proportion to what was uploaded
// for them, ResourceExhausted else.
Result<configs::Job> check_submission(const proto::SubmitJob& submission, const storage::BlobStore& blobs,
                                      const std::filesystem::path& folder);

// Puts the data sets of a submission that was checked into `folder`, each file unless it is there already.
// Errors: what the disk says, and Corrupted for a blob that is not what its name says.
Status place_files(const proto::SubmitJob& submission, const configs::Job& job,
                   const storage::BlobStore& blobs, const std::filesystem::path& folder);

// A small file of the submission, whole. Errors: NotFound; OutOfRange for more than `size_max` bytes; what
// the store says.
Result<std::string> read_submitted(const proto::SubmitJob& submission, const std::string& path,
                                   const storage::BlobStore& blobs, uint64_t size_max);

// The tokenizer of a job that serves, as the submission names it; empty: it has none.
std::string tokenizer_path(const configs::Job& job, const std::filesystem::path& folder);

// The model that guesses for one that is served, likewise; empty: none does.
std::string draft_path(const configs::Job& job, const std::filesystem::path& folder);

// The model, as the submission names it. REQUIRES: it was checked.
std::string model_path(const configs::Job& job, const std::filesystem::path& folder);

}  // namespace weft::broker
