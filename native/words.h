// How the programs end and what they say: every end is one sentence on standard error and an exit code.
#pragma once

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

enum Exit { DONE = 0, WRONG_RESULT = 1, BAD_INPUT = 2, MACHINE_CANNOT = 3, STOPPED = 4 };

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void end(Exit code, const char* form, ...) {
    std::fflush(stdout);
    va_list rest;
    va_start(rest, form);
    std::vfprintf(stderr, form, rest);
    va_end(rest);
    std::fputc('\n', stderr);
    std::exit(code);
}

// A whole number out of a word, or the end of the program: nothing before it, nothing after it, within its bounds.
inline uint64_t whole_number(const char* program, const char* name, const char* text, uint64_t least, uint64_t most) {
    char* rest = nullptr;
    errno = 0;
    const unsigned long long value = std::strtoull(text, &rest, 10);
    const bool plain = text[0] >= '0' && text[0] <= '9' && *rest == '\0' && errno == 0;
    if (!plain || value < least || value > most)
        end(BAD_INPUT, "%s: %s is a whole number from %llu to %llu, not '%s'.", program, name,
            (unsigned long long)least, (unsigned long long)most, text);
    return value;
}

inline double gib(uint64_t bytes) { return double(bytes) / double(1ull << 30); }

// Text as a JSON string, with its quotes.
inline std::string quoted(const char* text) {
    std::string out = "\"";
    for (const unsigned char* c = reinterpret_cast<const unsigned char*>(text); *c; ++c) {
        char escape[8];
        if (*c == '"' || *c == '\\') out += '\\', out += char(*c);
        else if (*c < 0x20) std::snprintf(escape, sizeof escape, "\\u%04x", *c), out += escape;
        else out += char(*c);
    }
    return out + '"';
}
