/* The bridge to the NPU compiler: OpenVINO's C API behind a line protocol on standard input and output.
 *
 * A request is one line of fields that tabs separate; it is answered by lines that begin with "@". All other lines
 * are the compiler's own log. Paths may be Unix paths (Wine maps them when they begin with "Z:").
 *
 *   compile FOLDER MODEL.xml BLOB|- DEVICE [KEY=VALUE]...   -> @compiled SECONDS | @failed STAGE STATUS LENGTH, text
 *   property DEVICE KEY [KEY=VALUE]...                      -> @value TEXT | @failed ...
 *
 * The working directory becomes FOLDER, because that is where the compiler writes its schedule trace. The process
 * serves until its input ends; a compile that aborts ends the process, and the caller starts another.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#include "openvino/c/openvino.h"

#define FIELDS 40
#define PROPERTIES 16

static double seconds(void) {
    LARGE_INTEGER frequency, count;
    QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&count);
    return (double)count.QuadPart / (double)frequency.QuadPart;
}

static void failed(const char *stage, int status) {
    const char *text = ov_get_last_err_msg();
    if (text == NULL) text = "";
    printf("@failed\t%s\t%d\t%zu\n", stage, status, strlen(text));
    fwrite(text, 1, strlen(text), stdout);
    fputc('\n', stdout);
}

/* Splits KEY=VALUE fields in place into keys and values, in turn; returns how many strings, or -1 when too many. */
static int properties(char **fields, int count, const char **found) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        char *equals = strchr(fields[i], '=');
        if (equals == NULL) continue;
        if (n + 2 > 2 * PROPERTIES) return -1;
        *equals = 0;
        found[n++] = fields[i];
        found[n++] = equals + 1;
    }
    return n;
}

static void compile(ov_core_t *core, char **f, int count) {
    const char *p[2 * PROPERTIES] = {0};
    ov_model_t *model = NULL;
    ov_compiled_model_t *compiled = NULL;
    double start;
    int status, n = properties(f + 5, count - 5, p);
    if (n < 0 || !SetCurrentDirectoryA(f[1])) return failed("request", n);
    if ((status = ov_core_read_model(core, f[2], NULL, &model))) return failed("read", status);
    start = seconds();
    /* The count says how many of the trailing strings are looked at. */
    status = ov_core_compile_model(core, model, f[4], (size_t)n, &compiled, p[0], p[1], p[2], p[3], p[4], p[5], p[6],
                                   p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17], p[18],
                                   p[19], p[20], p[21], p[22], p[23], p[24], p[25], p[26], p[27], p[28], p[29], p[30],
                                   p[31]);
    start = seconds() - start;
    if (status) {
        failed("compile", status);
    } else if (strcmp(f[3], "-") && (status = ov_compiled_model_export_model(compiled, f[3]))) {
        failed("export", status);
    } else {
        printf("@compiled\t%.3f\n", start);
    }
    if (compiled) ov_compiled_model_free(compiled);
    ov_model_free(model);
}

static void property(ov_core_t *core, char **f, int count) {
    const char *p[2 * PROPERTIES] = {0};
    char *value = NULL;
    int status = 0, n = properties(f + 3, count - 3, p);
    for (int i = 0; i < n && !status; i += 2) status = ov_core_set_property(core, f[1], p[i], p[i + 1]);
    if (!status) status = ov_core_get_property(core, f[1], f[2], &value);
    if (status) return failed("property", status);
    for (char *c = value; *c; c++) if (*c == '\n' || *c == '\r') *c = ' ';
    printf("@value\t%s\n", value);
    ov_free(value);
}

int main(void) {
    static char line[1 << 16];
    ov_core_t *core = NULL;
    int status = ov_core_create(&core);
    if (status) {
        failed("core", status);
        return 1;
    }
    printf("@ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *fields[FIELDS] = {0};
        int count = 0;
        line[strcspn(line, "\r\n")] = 0;
        for (char *field = strtok(line, "\t"); field && count < FIELDS; field = strtok(NULL, "\t"))
            fields[count++] = field;
        if (count >= 5 && !strcmp(fields[0], "compile")) compile(core, fields, count);
        else if (count >= 3 && !strcmp(fields[0], "property")) property(core, fields, count);
        else printf("@failed\trequest\t-1\t7\nunknown\n");
        printf("@done\n");
        fflush(stdout);
    }
    ov_core_free(core);
    return 0;
}
