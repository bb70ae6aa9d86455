# cmake -DOUT=FILE -DFOLDER=DIR "-DFILES=a b" -P embed.cmake: a source with the bytes of files, for ui/assets.h.
separate_arguments(files UNIX_COMMAND "${FILES}")
set(arrays "")
set(rows "")
set(index 0)
foreach(file IN LISTS files)
  file(READ ${FOLDER}/${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${file}\", {reinterpret_cast<const char*>(kFile${index}), ${size}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUT} "// Written by cmake/embed.cmake.
#include \"ui/assets.h\"

namespace weft::ui {
namespace {
${arrays}
const EmbeddedFile kFiles[] = {
${rows}};
}  // namespace
std::span<const EmbeddedFile> embedded_files() { return kFiles; }
}  // namespace weft::ui
")
