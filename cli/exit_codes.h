// What `weft` returns to the shell. Stable; documented in docs/CLI.md.
#pragma once

#include <cstdio>
#include <string>

#include "base/result.h"

namespace weft::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a check, comparison or conformance case failed; or an internal error
inline constexpr int kExitUsage = 2;   // the command line, job file, model or data are not right as given
inline constexpr int kExitNotFound = 3;     // a file or name is not there, or may not be read
inline constexpr int kExitUnsupported = 4;  // understood, but not implemented here
inline constexpr int kExitCorrupted = 5;    // a file's bytes are not what they claim to be
inline constexpr int kExitResources = 6;    // memory, disk or a limit
inline constexpr int kExitDiverged = 7;     // the run diverged: a loss, gradient or weight was not finite
inline constexpr int kExitDeviceLost = 8;   // the device that computed is gone: start again once it is back
inline constexpr int kExitStopped = 130;    // stopped by Ctrl-C, after saving what can be gone on from

// The same in words for people: the manual page has them.
struct ExitMeaning {
  int code;
  const char* words;
};
inline constexpr ExitMeaning kExitMeanings[] = {
    {kExitOk, "The command did what was asked."},
    {kExitFailed, "A check or a comparison failed, a broker could not be reached, or weft itself is wrong."},
    {kExitUsage, "The command line, the job file, the model or the data are not right as given."},
    {kExitNotFound, "A file or a name is not there, or may not be read."},
    {kExitUnsupported, "The input is understood, but weft does not implement it."},
    {kExitCorrupted, "The bytes of a file are not what they claim to be."},
    {kExitResources, "Memory, disk or another limit does not suffice."},
    {kExitDiverged, "The run diverged: a loss, a gradient or a weight was not finite."},
    {kExitDeviceLost, "The device that computed is gone. Start again when it is back."},
    {kExitStopped, "Ctrl-C stopped the command, which saved what can be resumed."},
};

inline int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
    case ErrorCode::OutOfRange:
    case ErrorCode::Infeasible:
    case ErrorCode::VersionMismatch:
      return kExitUsage;
    case ErrorCode::NotFound:
    case ErrorCode::PermissionDenied:
      return kExitNotFound;
    case ErrorCode::Unsupported:
      return kExitUnsupported;
    case ErrorCode::Corrupted:
      return kExitCorrupted;
    case ErrorCode::ResourceExhausted:
      return kExitResources;
    case ErrorCode::Cancelled:
      return kExitStopped;
    case ErrorCode::DeviceLost:
      return kExitDeviceLost;
    case ErrorCode::Unavailable:
    case ErrorCode::Timeout:
    case ErrorCode::Internal:
      return kExitFailed;
  }
  return kExitFailed;
}

// What a command ends with, and in words on standard error why; `says_json`: as an event on standard output,
// too.
int end_with(const Result<int>& result, bool says_json = false);

}  // namespace weft::cli
